"""Faults that nobody who works on the diagnostics has looked at: they are counted, never read."""

from importlib import import_module
from pkgutil import iter_modules

FAULTS = tuple(
    fault
    for module in sorted(m.name for m in iter_modules(__path__))
    for fault in import_module(f"{__name__}.{module}").FAULTS
)
