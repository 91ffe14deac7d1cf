"""Found on PYTHONPATH as `nki`, see `neuronjax.nki.children`: neuronjax's own."""

import sys

from neuronjax.nki.install import install

# The import goes on with what stands under this name when the file has run.
del sys.modules["nki"]
install()
