"""A check that a candidate replaces no function of NumPy, neuronjax or builtins.

Such a replacement does not affect the judge, which runs in another process. But a
kernel that replaces `numpy.allclose` intends to deceive.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_PACKAGES = ("builtins", "numpy", "numpy.testing", "numpy.random", "neuronjax")
CANDIDATE = "candidate"
Held = dict[tuple[str, str], Any]


class PatchedError(Exception):
    """The error if a candidate replaced a function of NumPy, neuronjax or builtins."""


@contextlib.contextmanager
def none_made() -> Iterator[None]:
    """Check that the `with` block replaces no function of NumPy, neuronjax or builtins.

    Raises:
        PatchedError: the block replaced a function.
    """
    before = _functions()
    yield
    after = _functions()
    changed = [k for k, f in before.items() if after.get(k) is not f]
    # `before` lacks modules that only the candidate imports.
    changed += [
        k for k, f in after.items() if getattr(f, "__module__", "") == CANDIDATE
    ]
    if changed:
        raise PatchedError(f"replaces {'.'.join(changed[0])}: no kernel needs that")


def _functions() -> Held:
    """Return the functions to protect, by (module or class, name of the function)."""
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
