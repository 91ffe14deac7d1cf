"""Source locations of ops as reports show them: `model.py:12`, `In[3]:12`.

Notebook cells are compiled from temporary files with meaningless names; IPython knows
the cell of each file. This is for display only: rules and records keep the file's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from neuronjax.errors import cell_place, code_at
from neuronjax.ir.program import TOP


@dataclass(frozen=True)
class OpPlace:
    """An op with its module and source line.

    Attributes:
        op: "dot_general".
        module: the part of the model and the pass, "mlp (backward)"; "(top)" for none.
        source: `file:line`, or "".
    """

    op: str
    module: str
    source: str

    @property
    def line(self) -> str:
        """Return `file:line` without folders."""
        return place(self.source)

    @property
    def code(self) -> str:
        """Return the source code of the line; "" if it is not available."""
        return code_at(self.source)

    def __str__(self) -> str:
        inside = "" if self.module == TOP else f" in {self.module}"
        return f"{self.op}{inside}, {self.line}"


def place(source: str) -> str:
    """Return `file:line` without folders, or a notebook cell by its number."""
    if not source:
        return "(no line)"
    return cell_place(source) or source.rpartition("/")[2]


def places(sources: Iterable[str]) -> dict[str, str]:
    """Return `place` of each source, with as many folders as are needed to distinguish
    equal file names."""
    shown = {source: place(source) for source in sources}
    parts = 1
    while len({*shown.values()}) < len(shown):
        parts += 1
        count = Counter(shown.values())
        alike = [source for source, name in shown.items() if count[name] > 1]
        shown |= {source: "/".join(source.split("/")[-parts:]) for source in alike}
    return shown
