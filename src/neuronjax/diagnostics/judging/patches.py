"""Functions that a candidate replaced: in NumPy, in neuronjax, among the builtins.

The judge runs elsewhere and sees nothing of it; but a kernel that comes with another
`numpy.allclose` says what it is for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_PACKAGES = ("builtins", "numpy", "numpy.testing", "numpy.random", "neuronjax")
Held = dict[tuple[str, str], Any]


class PatchedError(Exception):
    """A function is no longer what it was."""


@contextlib.contextmanager
def none_made() -> Iterator[None]:
    """A block of code that may not replace functions of the packages.

    Raises:
        PatchedError: it did.
    """
    before = _functions()
    yield
    after = _functions()
    changed = [k for k, f in before.items() if after.get(k) is not f]
    if changed:
        raise PatchedError(f"replaces {'.'.join(changed[0])}: no kernel needs that")


def _functions() -> Held:
    """By module and name; of neuronjax's classes the methods too."""
    found: Held = {}
    for name, module in list(sys.modules.items()):
        own = name.startswith("neuronjax.")
        if isinstance(module, ModuleType) and (own or name in _PACKAGES):
            found |= _of(name, module)
            if own:
                for c in vars(module).values():
                    if isinstance(c, type) and c.__module__ == name:
                        found |= _of(f"{name}.{c.__name__}", c)
    return found


def _of(name: str, holder: Any) -> Held:
    return {(name, k): v for k, v in vars(holder).items() if callable(v)}
