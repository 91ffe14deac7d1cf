"""Pages of the site that are made from the package when the site is built.

Every module makes Markdown; none knows MkDocs, so that the tests can read what they
make. `docs/hooks.py` puts it into the site.
"""
