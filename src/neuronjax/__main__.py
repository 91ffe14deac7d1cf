"""`python -m neuronjax`: the command line."""

from neuronjax.cli import main

if __name__ == "__main__":
    main()
