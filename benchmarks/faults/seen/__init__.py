"""Faults that the diagnostics' authors may look at while they build them.

One file a theme; `parts` and `common` have the innocent layers and losses around the
faults. Every case was run under its policy and compared with the healthy program in
FP64. Some were written after the diagnostics, of the kinds of which fewest were found;
some were held out until no more of them were found blindly.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from benchmarks.faults.case import Fault

_PARTS = frozenset(("common", "parts"))

FAULTS: tuple[Fault, ...] = tuple(
    fault
    for module in sorted({m.name for m in iter_modules(__path__)} - _PARTS)
    for fault in import_module(f"{__name__}.{module}").FAULTS
)
