"""Golden regression: did a bit change?

    golden("mlp_step", train_step, target="trn2", policy="fp8")(params, batch)

keeps the program, its inputs and the bits of its outputs, and on later runs checks two
things apart: that the *stored* program gives the stored bits, on any host, Python and
jaxlib; and whether *today's* JAX makes the same program of the function, which another
version, or an edit, may not. Section 10 of the design.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from neuronjax.api.asked import Asked
from neuronjax.diagnostics.edits.canonical_text import fingerprint
from neuronjax.errors import InternalError, InvalidProgramError
from neuronjax.policy import Policy
from neuronjax.testing import golden_file
from neuronjax.testing.archive import locked
from neuronjax.testing.bits import LeafDifference, bits, compared, listed
from neuronjax.testing.golden_file import GoldenFile, Leaf
from neuronjax.testing.golden_run import (
    GoldenRun,
    Today,
    stored_inputs,
    stored_program,
    x64,
)
from neuronjax.testing.op_hashes import FirstChange, first_change
from neuronjax.testing.program_change import ProgramChange, moved_versions

ChangedProgram = Literal["warn", "bits", "fail", "edits"]
#: What `update` and `changed_program` are where they are not given: the pytest plugin
#: sets these, for the processes of pytest-xdist too, and says which session it is.
UPDATE, CHANGED = "NEURONJAX_UPDATE_GOLDEN", "NEURONJAX_GOLDEN_PROGRAM"
SESSION = "NEURONJAX_GOLDEN_SESSION"
_CHOICES = ("warn", "bits", "fail", "edits")
_NAME = re.compile(r"[\w.+=,\[\]-]+")
_UPDATE_REMEDY = (
    "  if it is intended: pytest --neuronjax-update-golden, and review the difference"
)
_EMULATOR = (
    "the program, its arguments and its policy are as stored: the emulator changed"
)
_COMPARE = (
    "the stored program gives the stored bits; op by op: "
    'neuronjax.compare(function, against="{path}")(*arguments)'
)


class GoldenMismatch(AssertionError):
    """A golden does not hold.

    Attributes:
        kind: "missing", "arguments", "bits" of the stored program, or "program" for
            today's.
        leaves: what differs, leaf by leaf.
        first_op: of "bits": the first op of the stored program that changed, where one
            was found.
        change: of "program": who changed the program, and the edits.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        leaves: Sequence[LeafDifference] = (),
        first_op: FirstChange | None = None,
        change: ProgramChange | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.leaves = kind, tuple(leaves)
        self.first_op, self.change = first_op, change


class ProgramChangedWarning(UserWarning):
    """The function is another program today than the golden holds; it says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoldenReport:
    """A golden that holds.

    Attributes:
        name: of the golden.
        path: of its files, without the ending.
        written: whether this run wrote them.
        program: "same" or "changed", today's against the stored one.
        today: "same bits" or "other bits" of today's program, "" where it is the
            stored one.
        leaves: what differs in today's program.
        change: who changed the program, and the edits; None where it is the same.
        provenance: of the golden.
    """

    name: str
    path: Path
    written: bool = False
    program: str = "same"
    today: str = ""
    leaves: tuple[LeafDifference, ...] = ()
    change: ProgramChange | None = None
    provenance: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def records(self) -> list[dict[str, Any]]:
        """One dictionary per leaf that differs."""
        return [leaf.record() for leaf in self.leaves]

    def __str__(self) -> str:
        if self.written:
            return f"golden {self.name}: written to {self.path}"
        today = f", {self.today}" if self.today else ""
        return f"golden {self.name}: bits hold; program {self.program}{today}"


def golden(
    name: str,
    function: Callable[..., Any],
    *,
    target: str | None = None,
    policy: str | Policy | None = None,
    directory: str | os.PathLike[str] = "golden",
    update: bool | None = None,
    changed_program: ChangedProgram | None = None,
    rounding_seed: int = 0,
    input_seed: int = 0,
    **jit_options: Any,
) -> Callable[..., GoldenReport]:
    """Guard the bits of a function's results.

    Args:
        name: of the files; letters, digits and `_.+=,[]-`.
        function: what `jax.jit` takes, or an `Emulated` function, which brings its
            own target and policy where none is named here. What it writes into modules
            of Flax NNX is among its results.
        target: as `neuronjax.compare`.
        policy: as `neuronjax.compare`.
        directory: where the files are; made if need be.
        update: write the files anew; None: as `pytest --neuronjax-update-golden` says.
            With False a function is only compared, and the name may be another's.
        changed_program: when today's program is not the stored one: with "edits" fail
            if its bits differ, and only warn if they do because another JAX makes
            another program of the same source; "warn" only; fail if its "bits" differ,
            whoever changed it; or "fail" in any case. None: as the plugin is
            configured, else "edits".
        rounding_seed: call index of stochastic rounding.
        input_seed: of arguments that are `ShapeDtypeStruct`s: uniform in [-1, 1), made
            anew on every run and not stored.
        **jit_options: as `neuronjax.jit`, such as `static_argnums`.

    Returns:
        A function of the arguments that returns a `GoldenReport`. Delayed scaling
        starts from an empty history, whose successor is one more result.

    Raises:
        GoldenMismatch: (when called) there is no golden, the arguments are not those
            stored, the bits differ, or the program does and that is a failure.
        InvalidProgramError: a bad name or option, a name that another function, or in
            a session of pytest another program, has taken before; or damaged files.
    """
    if not _NAME.fullmatch(name):
        raise InvalidProgramError(
            f"golden {name!r}", remedy="use letters, digits and _.+=,[]-"
        )
    setting = {"target": target, "policy": policy, **jit_options}
    asked = Asked.of(function, **setting)
    path = Path(directory) / name
    writes = bool(os.environ.get(UPDATE)) if update is None else update
    choice = changed_program or os.environ.get(CHANGED) or "edits"
    if choice not in _CHOICES:
        raise InvalidProgramError(
            f"changed_program is {choice!r}", remedy=f"choose of {', '.join(_CHOICES)}"
        )

    @functools.wraps(asked.step)
    def check(*args: Any, **kwargs: Any) -> GoldenReport:
        __tracebackhide__ = True
        today = Today.of(asked, args, kwargs, input_seed)
        twice = "" if update is False else _used_twice(path, asked.step, today)
        try:
            report = None if writes else _compare(name, path, today, choice)
        except GoldenMismatch as error:
            if twice:
                error.add_note(twice)
            raise
        if twice:
            raise InvalidProgramError(
                twice,
                remedy="give each golden a name of its own, and each policy too; to "
                "compare another function with a golden, update=False",
            )
        if report is None:
            return _write(name, path, today, rounding_seed)
        if report.change is not None:
            text = _changed_text(report, report.change)
            warnings.warn(text, ProgramChangedWarning, stacklevel=2)
        return report

    return check


def check_stored(path: str | os.PathLike[str]) -> GoldenReport:
    """Check the bits of a stored program alone, without its function.

    Args:
        path: of the golden's files, with or without an ending.

    Raises:
        GoldenMismatch: the bits differ.
        InvalidProgramError: the files are missing or damaged.
    """
    where = Path(path)
    if where.suffix in (".json", ".mlirbc", ".npz"):
        where = where.with_suffix("")
    stored = golden_file.read(where)
    _check_bits(where.name, stored, stored_inputs(stored))
    return GoldenReport(name=where.name, path=where, provenance=dict(stored.provenance))


# -- Names -----------------------------------------------------------------------------

#: Of every golden that this process has used: by whom, and for what.
_taken: dict[tuple[str, Path], tuple[str, Any]] = {}


def _used_twice(path: Path, step: Any, today: Today) -> str:
    """Take a name for this session; return what is wrong if another use has it, or "".

    Of a function outside of pytest the program may change, for it may be edited."""
    function: Any = inspect.unwrap(step)
    function = getattr(function, "func", function)  # of a partial
    named = function if hasattr(function, "__qualname__") else type(function)
    user = f"{named.__module__}.{named.__qualname__}"
    if user.endswith("<lambda>"):
        user += f":{function.__code__.co_firstlineno}"
    asked = (fingerprint(today.program), today.target, today.policy, today.leaves)
    use = user, asked if os.environ.get("PYTEST_CURRENT_TEST") else None
    other = _taken.setdefault((os.environ.get(SESSION, ""), path.resolve()), use)
    if other == use:
        return ""
    return (
        f"golden {path.name} is used twice, by {other[0]} and by {user}, for different "
        "things"
    )


# -- Writing ---------------------------------------------------------------------------


def _write(name: str, path: Path, today: Today, rounding_seed: int) -> GoldenReport:
    run = today.run(rounding_seed)
    outputs = run.outputs(today.inputs)
    again, ops = run.watched(today.inputs)
    if any(a.tobytes() != b.tobytes() for a, b in zip(outputs, again, strict=True)):
        raise InternalError(
            f"golden {name}: its bits depend on whether the ops are watched",
            remedy="please report it, with the function",
        )
    names = [*today.out_paths, "amax_history"][: len(outputs)]
    leaves = tuple(Leaf.of(*each) for each in zip(names, outputs, strict=True))
    new = GoldenFile(
        program=today.code,
        fingerprint=fingerprint(today.program),
        target=today.target,
        policy=today.policy,
        rounding_seed=rounding_seed,
        x64=x64(),
        inputs=today.leaves,
        outputs=leaves,
        arrays=_kept(today, leaves, outputs),
        ops=ops,
        provenance=golden_file.provenance(),
        sources=today.sources,
    )
    with locked(path):
        try:
            old = golden_file.read(path)
        except InvalidProgramError:  # none, damaged, or of another version
            old = None
        written = old is None or not old.same_but_provenance(new)
        if written:
            new.write(path)
    return GoldenReport(
        name=name, path=path, written=written, provenance=dict(new.provenance)
    )


def _kept(
    today: Today, leaves: Sequence[Leaf], outputs: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    arrays = {
        f"input/{i}": bits(array)
        for i, (array, leaf) in enumerate(zip(today.inputs, today.leaves, strict=True))
        if leaf.seed is None
    }
    for i, (array, leaf) in enumerate(zip(outputs, leaves, strict=True)):
        arrays[f"output/{i}"] = bits(array)[leaf.sampled]
    return arrays


# -- Comparing -------------------------------------------------------------------------


def _compare(name: str, path: Path, today: Today, choice: str) -> GoldenReport:
    __tracebackhide__ = True
    if not golden_file.beside(path, ".json").exists():
        raise GoldenMismatch(
            "missing",
            f"golden {name}: there is no {path}.json\n"
            "  make it: pytest --neuronjax-update-golden",
        )
    stored = golden_file.read(path)
    _check_arguments(name, stored, today)
    inputs = stored_inputs(stored)
    _check_bits(name, stored, inputs)
    report = GoldenReport(name=name, path=path, provenance=dict(stored.provenance))
    if fingerprint(today.program) == fingerprint(stored_program(stored)):
        return report
    return _changed(name, report, stored, today, choice)


def _check_arguments(name: str, stored: GoldenFile, today: Today) -> None:
    __tracebackhide__ = True
    problems = []
    if stored.target != today.target:
        problems.append(f"  target: {today.target}, expected {stored.target}")
    names = [field.name for field in dataclasses.fields(Policy) if field.compare]
    pairs = (
        (name, getattr(today.policy, name), getattr(stored.policy, name))
        for name in names
    )
    problems += [f"  policy.{n}: {a!r}, expected {b!r}" for n, a, b in pairs if a != b]
    now, then = ([leaf.path for leaf in x] for x in (today.leaves, stored.inputs))
    if now != then:
        problems.append(f"  arguments: {now}, expected {then}")
    leaves = _argument_differences(stored, today) if now == then else []
    if problems or leaves:
        lines = [*problems, *([listed(leaves)] if leaves else [])]
        head = f"golden {name}: the arguments are not those that were stored"
        text = "\n".join([head, *lines, _UPDATE_REMEDY])
        raise GoldenMismatch("arguments", text, leaves)


def _argument_differences(stored: GoldenFile, today: Today) -> list[LeafDifference]:
    found = []
    for i, (leaf, array) in enumerate(zip(stored.inputs, today.inputs, strict=True)):
        if leaf.seed is None:
            expected = leaf.array(stored.arrays[f"input/{i}"]).reshape(leaf.shape)
            found.append(compared(leaf.path, array, expected))
        elif Leaf.of(leaf.path, array).sha256 != leaf.sha256:
            what = f"is not what seed {leaf.seed} gives"
            found.append(LeafDifference(path=leaf.path, what=what))
    return [difference for difference in found if difference]


def _check_bits(name: str, stored: GoldenFile, inputs: list[np.ndarray]) -> None:
    """The stored program gives the stored bits."""
    __tracebackhide__ = True
    with jax.enable_x64(stored.x64):
        program = stored_program(stored)
        run = GoldenRun.of(program, stored.target, stored.policy, stored.rounding_seed)
        leaves = _output_differences(stored, run.outputs(inputs))
        if not leaves:
            return
        _, ops = run.watched(inputs)
    change = first_change(stored.ops, ops)
    detail = [f"first op that changed: {change}"] if change else []
    head = f"golden {name}: the stored program gives other bits than it did"
    text = _failure(head, [_EMULATOR], leaves, detail, stored)
    raise GoldenMismatch("bits", text, leaves, first_op=change)


def _output_differences(
    stored: GoldenFile, outputs: Sequence[np.ndarray]
) -> list[LeafDifference]:
    if len(outputs) != len(stored.outputs):
        what = f"{len(outputs)} results, expected {len(stored.outputs)}"
        return [LeafDifference(path="results", what=what)]
    found = [
        leaf.difference(array, stored.arrays[f"output/{i}"])
        for i, (leaf, array) in enumerate(zip(stored.outputs, outputs, strict=True))
    ]
    return [difference for difference in found if difference]


def _failure(
    head: str,
    why: Sequence[str],
    leaves: Sequence[LeafDifference],
    detail: Sequence[str],
    stored: GoldenFile,
) -> str:
    moved = moved_versions(stored.provenance, golden_file.provenance())
    since = f"  changed since: {', '.join(moved) or 'no version'}"
    body = [f"  {line}" for line in why]
    rest = [f"  {line}" for line in detail]
    lines = [head, *body, listed(leaves), *rest, since, _UPDATE_REMEDY]
    return "\n".join(filter(None, lines))


def _changed(
    name: str, report: GoldenReport, stored: GoldenFile, today: Today, choice: str
) -> GoldenReport:
    """Today's program is another one: are its bits, and who made it another?"""
    __tracebackhide__ = True
    run = today.run(stored.rounding_seed)
    leaves = _output_differences(stored, run.outputs(today.inputs))
    change = ProgramChange.between(
        (stored_program(stored), today.program),
        (stored.sources, today.sources),
        (stored.provenance, golden_file.provenance()),
    )
    found = dataclasses.replace(
        report,
        program="changed",
        today="other bits" if leaves else "same bits",
        leaves=tuple(leaves),
        change=change,
    )
    fails = {"edits": change.cause != "jax", "bits": True, "warn": False}
    if not (choice == "fail" or (leaves and fails[choice])):
        return found
    head = f"golden {name}: the function is another program now, with {found.today}"
    compare = [_COMPARE.format(path=f"{report.path}.mlirbc")]
    text = _failure(head, [*change.report()], leaves, compare, stored)
    raise GoldenMismatch("program", text, leaves, change=change)


def _changed_text(report: GoldenReport, change: ProgramChange) -> str:
    op = f"; first op: {change.edits[0]}" if change.edits else ""
    detail = f": {report.leaves[0]}" if report.leaves else ""
    return (
        f"golden {report.name}: the stored program gives the stored bits, but the "
        f"function is another program now, with {report.today}{detail}; "
        f"{change.because}{op}"
    )
