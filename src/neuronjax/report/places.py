"""Where an op comes from, as a reader of a report names it: `model.py:12`, `In[3]:12`.

Notebook cells are compiled from temporary files whose names say nothing; IPython knows
which cell a file was. Only for showing: rules and records keep the file itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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
    """`place` of each; with those folders that tell two apart which would be alike."""
    alike: dict[str, list[str]] = {}
    for source in dict.fromkeys(sources):
        alike.setdefault(place(source), []).append(source)
    shown = {}
    for name, same in alike.items():
        shown |= _told_apart(same) if len(same) > 1 else {same[0]: name}
    return shown


def _told_apart(sources: Sequence[str]) -> dict[str, str]:
    """With as few folders as that takes."""
    for count in itertools.count(2):
        shown = {s: "/".join(s.split("/")[-count:]) for s in sources}
        if len(set(shown.values())) == len(sources):
            return shown
    raise AssertionError
