"""The `neuronxcc` of PYTHONPATH, which installs neuronjax's modules; see `children`."""

import sys

from neuronjax.nki.install import install

# The import then takes the module that `install` puts under this name.
del sys.modules["neuronxcc"]
install()
