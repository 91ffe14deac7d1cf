"""Files that are made from the package and kept in the repository.

`python -m docs.made` writes them, as `make docs-update` does; a test holds each against
what is made today. What the command line shows of them is part of the package.
"""
