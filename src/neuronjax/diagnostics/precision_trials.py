"""Assignments of a precision search as programs: lowered, priced and run.

Each assignment is lowered and priced once, and each distinct program is run once: an
assignment with the instructions of an earlier assignment has the same error.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neuronjax.diagnostics.precision_groups import Groups
from neuronjax.diagnostics.precision_metrics import OutputError
from neuronjax.diagnostics.precision_policies import Assignment, Candidates
from neuronjax.errors import UnsupportedError
from neuronjax.ir.instruction import Block, Instruction, InstructionProgram
from neuronjax.ir.text import is_block
from neuronjax.policy import Policy


class BudgetSpentError(Exception):
    """A signal that the search may run no more programs; the search catches it."""


class Tried(NamedTuple):
    """A policy that was run, with its predicted time and measured error."""

    assignment: Assignment
    seconds: float
    error: float


class PricedPolicy(NamedTuple):
    """A policy's program: a hash of its instructions, and its predicted time."""

    identity: str
    seconds: float


@dataclass(kw_only=True)
class PolicyTrials:
    """The predicted times and errors of assignments, each computed once.

    Attributes:
        candidates, groups: an assignment is the index of a candidate for every group.
        price: lowers a policy's program and predicts its time.
        outputs: runs a policy's program and returns its outputs.
        error_of: returns the error of outputs, with the worst array.
        reference: known outputs, by program, or by policy if not `by_program`.
        most: the largest number of programs to run.
        heard: called after every run with `runs`, the error and the predicted time.
        by_program: whether equal programs have equal outputs.
        held_out: returns a policy's error on held-out batches; None if there are none.
            Its runs do not count in `runs`.
        elements: number of measured numbers per batch.
    """

    candidates: Candidates
    groups: Groups
    price: Callable[[Policy], PricedPolicy]
    outputs: Callable[[Policy], Any]
    error_of: Callable[[Any], OutputError]
    reference: dict[str | Policy, Any]
    most: int
    runs: int = 0
    heard: Callable[[int, float, float], None] = lambda runs, error, seconds: None
    by_program: bool = True
    held_out: Callable[[Policy], float] | None = None
    elements: int = 0
    _priced: dict[Assignment, PricedPolicy | UnsupportedError] = field(
        default_factory=dict
    )
    _errors: dict[str | Policy, OutputError] = field(default_factory=dict)
    _held_out: dict[str | Policy, float] = field(default_factory=dict)

    def policy(self, assignment: Assignment) -> Policy:
        return self.candidates.policy(self.groups, assignment)

    def seconds(self, assignment: Assignment) -> float:
        """Return the predicted time; raise UnsupportedError if there is none."""
        return self._price(assignment).seconds

    def program(self, assignment: Assignment) -> str:
        """Return a hash of the instructions of the assignment's program."""
        return self._price(assignment).identity

    def error(self, assignment: Assignment) -> float:
        """Return the error of `assignment`. Raise BudgetSpentError if it must be run,
        but `most` programs were run already."""
        key = self._key(assignment)
        if key not in self._errors:
            if key in self.reference:
                outputs = self.reference[key]
            elif self.runs >= self.most:
                raise BudgetSpentError
            else:
                self.runs += 1
                outputs = self.outputs(self.policy(assignment))
            self._errors[key] = found = self.error_of(outputs)
            self.heard(self.runs, found.error, self.seconds(assignment))
        return self._errors[key].error

    def known_error(self, assignment: Assignment) -> float | None:
        """Return the error, or None if the assignment was not run."""
        if self.known_seconds(assignment) is None:
            return None
        found = self._errors.get(self._key(assignment))
        return None if found is None else found.error

    def worst_where(self, refused: Callable[[float], bool]) -> dict[str, int]:
        """Return, by worst array, the number of programs whose error is `refused`."""
        found = Counter(m.array for m in self._errors.values() if refused(m.error))
        return dict(found.most_common())

    def held_out_error(self, assignment: Assignment) -> float | None:
        """Return the error on held-out batches, or None if there are none."""
        if self.held_out is None:
            return None
        key = self._key(assignment)
        if key not in self._held_out:
            self._held_out[key] = self.held_out(self.policy(assignment))
        return self._held_out[key]

    def known_seconds(self, assignment: Assignment) -> float | None:
        """Return the predicted time if the assignment was priced, else None."""
        found = self._priced.get(assignment)
        return found.seconds if isinstance(found, PricedPolicy) else None

    def tried(self) -> Iterator[Tried]:
        for assignment in list(self._priced):
            error = self.known_error(assignment)
            if error is not None:
                yield Tried(assignment, self.seconds(assignment), error)

    def _key(self, assignment: Assignment) -> str | Policy:
        return self.program(assignment) if self.by_program else self.policy(assignment)

    def _price(self, assignment: Assignment) -> PricedPolicy:
        if assignment not in self._priced:
            try:
                self._priced[assignment] = self.price(self.policy(assignment))
            except UnsupportedError as error:
                self._priced[assignment] = error
        found = self._priced[assignment]
        if isinstance(found, UnsupportedError):
            raise found
        return found


def program_identity(program: InstructionProgram) -> str:
    """Return a hash of a program's instructions and the buffers that they use."""
    blocks = map(_ends, (program.main, *program.functions.values()))
    text = repr((program.seed, *blocks, *map(_described, program.walk())))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _described(i: Instruction) -> tuple:
    return (
        [part for part in i.signature() if not is_block(part)],
        i.engine,
        i.ordinal,
        [view.buffer.number for view in i.operands],
        [buffer.number for buffer in i.results],
        list(map(_ends, i.blocks)),
    )


def _ends(block: Block) -> tuple:
    arguments = [(buffer.number, str(buffer.type)) for buffer in block.arguments]
    return arguments, [view.buffer.number for view in block.results]
