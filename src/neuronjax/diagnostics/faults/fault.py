"""One fault: an op, what is wrong with it, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neuronjax.diagnostics.op_records import OpRecord


@dataclass(frozen=True, kw_only=True, repr=False)
class Fault(Mapping[str, Any]):
    """An op that makes or amplifies an error; a mapping with the keys of `as_dict`.

    Attributes:
        kind: a key of `naming.KINDS`.
        role: "makes" if the op makes the error; "amplifies" if other ops made it.
        record: the op.
        parameter: path of the nearest leaf of the arguments that the op or an earlier
            op reads, or "". It shows the part of a model if modules have no names.
        shows: the first op whose error is too large; None if that is `record`.
        iteration: for each loop around the op, the iteration of the first large error.
        evidence: what was observed, in words and numbers.
        remedy: what to try. An error in this text is that of this op alone in a trial.
        outputs: paths of the results that depend on the op.
    """

    kind: str
    role: str
    record: OpRecord
    parameter: str = ""
    shows: OpRecord | None = None
    iteration: tuple[int, ...] = ()
    evidence: str
    remedy: str
    outputs: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<neuronjax.Fault {self.kind} at {self.record.line or self.record.op}>"

    def __getitem__(self, name: str) -> Any:
        return self.as_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return a flat dict, for a data frame or JSON."""
        return {
            "kind": self.kind,
            "role": self.role,
            "op": self.record.op,
            "number": self.record.number,
            "module": self.record.module,
            "source": self.record.source,
            "parameter": self.parameter,
            "shows": None if self.shows is None else self.shows.number,
            "iteration": list(self.iteration),
            "evidence": self.evidence,
            "remedy": self.remedy,
            "outputs": list(self.outputs),
        }
