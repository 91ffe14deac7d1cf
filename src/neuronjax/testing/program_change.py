"""The reason why a golden's function gives another program today, and the edits.

A program depends on the user's source, the values that the source reads, and the JAX
that captures it. The cause is found from the lines of source and the versions, which
the golden stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from neuronjax.diagnostics.edits.canonical_text import first_difference
from neuronjax.diagnostics.edits.edit_result import Edit, EditedOp
from neuronjax.diagnostics.edits.programs import edits_between
from neuronjax.ir.program import Program
from neuronjax.testing.source_lines import EditedLines, SourceLines

#: The packages that turn a function into a program.
_MAKERS = ("jax", "jaxlib", "neuronjax")
_SHOWN_LINES, _SHOWN_EDITS = 3, 4
Cause = Literal["source", "jax", "source or jax", "values", "unknown"]


def moved_versions(
    then: Mapping[str, str], now: Mapping[str, str], names: Sequence[str] = ()
) -> list[str]:
    """Return changes such as "jax 0.10.2 -> 0.12.0" of `names`, or of all packages."""
    known = (n for n in names or then if n in then)
    return [
        f"{n} {then[n]} -> {now[n]}" for n in known if now.get(n, then[n]) != then[n]
    ]


@dataclass(frozen=True, kw_only=True)
class ProgramChange:
    """The differences between the stored program and today's.

    Attributes:
        cause: "source": the user edited it; "jax": the lines are the same and another
            JAX or neuronjax captured them; "source or jax": both changed; "values":
            neither changed, so a value that the lines read did; "unknown": there is no
            source, as in an older golden or for a function without a file.
        edits: edits of ops; ops on edited lines come first.
        lines: the edited lines of the source; None if unknown.
        versions: changed versions of the packages that make programs.
        first_lines: the first lines of the programs' text that differ, if ops do not.
    """

    cause: Cause
    edits: tuple[Edit, ...]
    lines: EditedLines | None
    versions: tuple[str, ...]
    first_lines: str = ""

    @classmethod
    def between(
        cls,
        programs: tuple[Program, Program],
        sources: tuple[SourceLines | None, SourceLines],
        provenances: tuple[Mapping[str, str], Mapping[str, str]],
    ) -> ProgramChange:
        """Return the change of (stored, today's) programs, sources and versions."""
        versions = tuple(moved_versions(*provenances, _MAKERS))
        before, after = sources
        lines, edits = None, edits_between(*programs)
        if before is not None and before.files and after.files:
            lines = EditedLines.between(before, after)
            sides = (before, lines.before), (after, lines.after)

            def is_elsewhere(edit: Edit) -> bool:
                ops = zip((edit.before, edit.after), sides, strict=True)
                return not any(_is_on(op, *side) for op, side in ops)

            edits = tuple(sorted(edits, key=is_elsewhere))
        return cls(
            cause=_cause(lines, versions),
            edits=edits,
            lines=lines,
            versions=versions,
            first_lines="" if edits else first_difference(*programs),
        )

    @property
    def because(self) -> str:
        """The cause in a sentence."""
        moved = ", ".join(self.versions)
        return {
            "source": f"the source was edited{self._where}",
            "jax": f"the source is the same, and {moved}: this JAX makes another "
            "program of the source",
            "source or jax": f"the source was edited{self._where}, and {moved}",
            "values": "source and JAX are the same: a value or a library that the "
            "source uses has changed",
            "unknown": f"the source may have been edited, and {moved}"
            if moved
            else "JAX is the same: the source, or a value that it reads, was edited",
        }[self.cause]

    @property
    def _where(self) -> str:
        places = [] if self.lines is None else [*self.lines.after, *self.lines.before]
        return f", {places[0]}" if places else ""

    def report(self) -> Iterator[str]:
        """Yield lines of text about the cause, the source and the ops."""
        yield self.because
        if self.lines is not None:
            yield from _shown_lines("-", self.lines.before)
            yield from _shown_lines("+", self.lines.after)
        for n, edit in enumerate(self.edits[:_SHOWN_EDITS]):
            yield f"{'  then' if n else 'first op that changed'}: {edit.kind} {edit}"
        if len(self.edits) > _SHOWN_EDITS:
            yield f"  and {len(self.edits) - _SHOWN_EDITS} more"
        yield from self.first_lines.splitlines()


def _cause(lines: EditedLines | None, versions: Sequence[str]) -> Cause:
    if lines is None:
        return "unknown"
    if versions:
        return "source or jax" if lines else "jax"
    return "source" if lines else "values"


def _is_on(op: EditedOp | None, held: SourceLines, edited: Mapping[str, str]) -> bool:
    return op is not None and not held.statement(op.source).isdisjoint(edited)


def _shown_lines(sign: str, lines: Mapping[str, str]) -> Iterator[str]:
    for place, text in [*lines.items()][:_SHOWN_LINES]:
        yield f"  {sign} {text.strip()}  ({place})"
    if len(lines) > _SHOWN_LINES:
        yield f"  {sign} ... {len(lines) - _SHOWN_LINES} more lines"
