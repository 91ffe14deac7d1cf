"""`python -m neuronjax`: the command line."""

from neuronjax_command import main

if __name__ == "__main__":
    main()
