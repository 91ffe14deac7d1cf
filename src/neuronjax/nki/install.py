"""The modules `nki` and, of the older style, `neuronxcc.nki`, as neuronjax's own.

This is for running kernel files unmodified on a machine without the vendor's package.
The modules are neuronjax's own: `nki.language is neuronjax.nki.language`. The older
names have the older calling style, see `legacy`.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from neuronjax.errors import UnsupportedError
from neuronjax.nki.children import is_stand_in

# Name of the imported module -> the module that provides it. Parents come first.
MODULES = {
    "nki": "neuronjax.nki",
    "nki.language": "neuronjax.nki.language",
    "nki.language.constants": "neuronjax.nki.language.constants",
    "nki.isa": "neuronjax.nki.isa",
    "nki.isa.constants": "neuronjax.nki.isa.constants",
    "nki.collectives": "neuronjax.nki.collectives",
    "nki.typing": "neuronjax.nki.typing",
    "neuronxcc.nki": "neuronjax.nki.legacy",
    "neuronxcc.nki.language": "neuronjax.nki.legacy.language",
    "neuronxcc.nki.language.constants": "neuronjax.nki.language.constants",
    "neuronxcc.nki.isa": "neuronjax.nki.legacy.isa",
    "neuronxcc.nki.isa.constants": "neuronjax.nki.isa.constants",
    "neuronxcc.nki.typing": "neuronjax.nki.typing",
    "neuronxcc.nki.compiler": "neuronjax.nki.legacy.compiler",
}
_PACKAGES = ("nki", "neuronxcc")


class _AbsentModules(MetaPathFinder):
    """An import finder that refuses modules that neuronjax does not provide; otherwise
    files of neuronjax/nki would be imported again under another name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.startswith(tuple(f"{p}." for p in _PACKAGES)):
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: neuronjax provides "
                f"{', '.join(MODULES)}",
                name=fullname,
            )


def install() -> None:
    """Provide the modules `nki` and `neuronxcc.nki`; a second call changes nothing.

    Raises:
        UnsupportedError: the vendor's package is installed.
    """
    if installed():
        return
    for package in _PACKAGES:
        spec = None if package in sys.modules else importlib.util.find_spec(package)
        if spec is not None and is_stand_in(spec.origin):
            continue
        if package in sys.modules or spec is not None:
            raise UnsupportedError(
                f"the package {package} is installed here",
                op="neuronjax.nki.install",
                remedy="write import neuronjax.nki, or install neuronjax in an "
                f"environment without {package}",
            )
    outer = ModuleType("neuronxcc", "Replaces the vendor's package; see neuronjax.")
    outer.__path__ = []
    sys.modules["neuronxcc"] = outer
    for name, source in MODULES.items():
        module = importlib.import_module(source)
        sys.modules[name] = module
        parent, _, attribute = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], attribute, module)
    sys.meta_path.insert(0, _AbsentModules())
    if not hasattr(logging, "OFF"):
        # The vendor's package adds this level; scripts pass it to `logging.disable`.
        setattr(logging, "OFF", logging.CRITICAL + 10)


def installed() -> bool:
    """Return whether `import nki` imports neuronjax."""
    return sys.modules.get("nki") is sys.modules["neuronjax.nki"]
