"""Where an op comes from, as a reader of a report names it: `model.py:12`, `In[3]:12`.

Notebook cells are compiled from temporary files whose names say nothing; IPython knows
which cell a file was. Only for showing: rules and records keep the file itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from neuronjax.errors import cell_place, code_at
from neuronjax.ir.program import TOP

_NOWHERE = "(no line)"


@dataclass(frozen=True)
class OpPlace:
    """An op as a reader finds it.

    Attributes:
        op: "dot_general".
        module: the part of the model and the pass, "mlp (backward)"; "(top)" of none.
        source: `file:line`, or "".
    """

    op: str
    module: str
    source: str

    @property
    def line(self) -> str:
        """`file:line` without folders."""
        return place(self.source)

    @property
    def code(self) -> str:
        """What is written on the line; "" where no file holds it."""
        return code_at(self.source)

    def __str__(self) -> str:
        inside = "" if self.module == TOP else f" in {self.module}"
        return f"{self.op}{inside}, {self.line}"


def place(source: str) -> str:
    """`file:line` without folders, a notebook's cell by its number."""
    if not source:
        return _NOWHERE
    return cell_place(source) or source.rpartition("/")[2]


def places(sources: Iterable[str]) -> dict[str, str]:
    """Return `place` of each; with as few folders as tell two apart which would be
    alike."""
    shown = {source: place(source) for source in sources}
    parts = 1
    while len({*shown.values()}) < len(shown):
        parts += 1
        count = Counter(shown.values())
        alike = [source for source, name in shown.items() if count[name] > 1]
        shown |= {source: "/".join(source.split("/")[-parts:]) for source in alike}
    return shown
