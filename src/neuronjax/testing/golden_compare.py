"""The comparison of a golden with its function as it is now.

It checks separately whether the stored program gives the stored bits on the stored
arguments, and whether today's program does. A change of the arguments is reported in
addition, and does not hide the other results.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neuronjax.api.asked import Asked
from neuronjax.api.tolerance import tolerance as legal_results
from neuronjax.diagnostics.edits.canonical_text import fingerprint, first_difference
from neuronjax.ir.program import Program
from neuronjax.policy import Policy
from neuronjax.report.setting import policy_name
from neuronjax.testing import golden_file
from neuronjax.testing.bits import LeafDifference, compared, listed
from neuronjax.testing.golden_file import GoldenFile, Leaf
from neuronjax.testing.golden_report import GoldenMismatch, GoldenReport
from neuronjax.testing.golden_run import Today, run, stored_inputs, stored_program
from neuronjax.testing.leaf_matching import LeafMatch, match
from neuronjax.testing.program_change import ProgramChange, moved_versions

_UPDATE_REMEDY = (
    "  if the change is intended: pytest --neuronjax-update-golden, and review the "
    "difference"
)
_OTHERS = "the arguments are not those that were stored"
_EMULATOR = (
    "  the program, its arguments and its policy are as stored: the emulator changed\n"
    "  find the op: neuronjax compare {0}.mlirbc --inputs {0}.npz --policy {1}"
)
_COMPARE = (
    "the stored program gives the stored bits; compare the ops: "
    'neuronjax.compare(function, against="{path}")(*arguments)'
)


def compare(
    name: str, path: Path, today: Today, choice: str, legal: str
) -> GoldenReport:
    """Compare a function with its golden; return the report, or raise if it fails."""
    __tracebackhide__ = True
    if not golden_file.beside(path, ".json").exists():
        raise GoldenMismatch(
            "missing",
            f"golden {name}: there is no {path}.json\n"
            "  make it: pytest --neuronjax-update-golden",
        )
    stored = golden_file.read(path)
    inputs = stored_inputs(stored)
    then, now = ([leaf.path for leaf in x] for x in (stored.inputs, today.leaves))
    given = today.inputs
    arguments = match(
        "arguments", then, now, lambda i, n: compared(now[n], given[n], inputs[i])
    )
    _check_setting(name, stored, today, arguments)
    check_bits(path, stored, inputs)
    report = GoldenReport(
        name=name,
        path=path,
        drift=arguments.differences,
        renamed=arguments.renamed,
        provenance=dict(stored.provenance),
    )
    if fingerprint(today.program) != fingerprint(stored_program(stored)):
        ordered = [inputs[i] for i in arguments.order]
        how = today.target, today.policy, stored.rounding_seed
        outputs = run(today.program, *how, ordered)
        report = changed(report, stored, today, outputs)
        if legal == "legal" and report.leaves and not _failing(report, choice):
            _check_legal(report, stored, inputs, outputs)
    if kind := _failing(report, choice):
        leaves = report.leaves or report.drift
        raise GoldenMismatch(kind, change_text(report), leaves, change=report.change)
    return report


def _failing(report: GoldenReport, choice: str) -> str:
    """Return what makes the golden fail, "program" or "arguments", or ""."""
    change = report.change
    if change is not None:
        fails = {"edits": change.cause != "jax", "bits": True, "warn": False}
        if choice == "fail" or (report.leaves and fails[choice]):
            return "program"
    moved = moved_versions(report.provenance, golden_file.provenance())
    is_theirs = choice == "edits" and bool(moved)
    return "arguments" * bool(report.drift and choice != "warn" and not is_theirs)


def change_text(report: GoldenReport, head: str = "") -> str:
    why = [] if report.change is None else [*report.change.report()]
    if not head and why:
        head = f"the function has become another program, with {report.today}"
    elif not head:
        head = f"{_OTHERS}; on the stored arguments the function gives the stored bits"
    parts = [*(f"  {line}" for line in why), listed(report.leaves)]
    if report.drift:
        parts += ["  of the arguments:" if why else "", listed(report.drift)]
    if report.renamed:
        parts.append(f"  renamed: {', '.join(report.renamed)}")
    compare = _COMPARE.format(path=f"{report.path}.mlirbc")
    return _text(report.name, head, [*parts, f"  {compare}"], report.provenance)


def _text(
    name: str, head: str, parts: Sequence[str], provenance: Mapping[str, str]
) -> str:
    moved = moved_versions(provenance, golden_file.provenance())
    since = f"  changed since: {', '.join(moved) or 'no version'}"
    body = [f"golden {name}: {head}", *filter(None, parts), since]
    return "\n".join([*body, _UPDATE_REMEDY])


def _check_setting(
    name: str, stored: GoldenFile, today: Today, arguments: LeafMatch
) -> None:
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
    leaves = () if arguments.are_types_equal else arguments.differences
    if problems or leaves:
        text = _text(name, _OTHERS, [*problems, listed(leaves)], stored.provenance)
        raise GoldenMismatch("arguments", text, leaves)


def check_bits(path: Path, stored: GoldenFile, inputs: list[np.ndarray]) -> None:
    """Refuse results of the stored program that differ from the stored bits."""
    __tracebackhide__ = True
    with jax.enable_x64(stored.x64):
        how = stored.target, stored.policy, stored.rounding_seed
        outputs = run(stored_program(stored), *how, inputs)
    matched = _results(stored, [leaf.path for leaf in stored.outputs], outputs)
    if not matched.differences:
        return
    hint = _EMULATOR.format(path, policy_name(stored.policy))
    head = "the stored program gives other bits than before"
    parts = [hint, listed(matched.differences)]
    text = _text(path.name, head, parts, stored.provenance)
    raise GoldenMismatch("bits", text, matched.differences)


def _results(
    stored: GoldenFile, paths: Sequence[str], outputs: Sequence[np.ndarray]
) -> LeafMatch:
    """Match stored results with today's. A result that only one program has is ignored
    if it is an argument that is returned unchanged."""
    paths = [*paths, "amax_history"][: len(outputs)]
    now = [Leaf.of(*each) for each in zip(paths, outputs, strict=True)]
    passed = {(leaf.path, leaf.sha256) for leaf in stored.inputs}

    def counted(leaves: Sequence[Leaf], others: Sequence[Leaf]) -> list[int]:
        shared = {leaf.path for leaf in others}
        numbered = ((n, (leaf.path, leaf.sha256)) for n, leaf in enumerate(leaves))
        return [n for n, it in numbered if it[0] in shared or it not in passed]

    held, kept = counted(stored.outputs, now), counted(now, stored.outputs)

    def differ(i: int, n: int) -> LeafDifference | None:
        leaf, codes = stored.outputs[held[i]], stored.arrays[f"output/{held[i]}"]
        renamed = dataclasses.replace(leaf, path=paths[kept[n]])
        return renamed.difference(outputs[kept[n]], codes)

    then = [stored.outputs[n].path for n in held]
    return match("results", then, [paths[n] for n in kept], differ)


def changed(
    report: GoldenReport,
    stored: GoldenFile,
    today: Today,
    outputs: Sequence[np.ndarray],
) -> GoldenReport:
    """Return the report with the results of a changed program and the cause."""
    results = _results(stored, today.out_paths, outputs)
    change = ProgramChange.between(
        (stored_program(stored), today.program),
        (stored.sources, today.sources),
        (stored.provenance, golden_file.provenance()),
    )
    return dataclasses.replace(
        report,
        program="changed",
        today="other bits" if results.differences else "same bits",
        leaves=results.differences,
        renamed=(*report.renamed, *results.renamed),
        change=change,
    )


def _check_legal(
    report: GoldenReport,
    stored: GoldenFile,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> None:
    """Refuse results that no legal implementation of the stored program gives."""
    __tracebackhide__ = True
    with jax.enable_x64(stored.x64):
        program = f"{report.path}.mlirbc"
        setting = {"target": stored.target, "policy": stored.policy}
        bounds = legal_results(program, **setting)(*inputs)
        illegal = bounds.check(list(outputs[: len(bounds.outputs)]))
    if not illegal:
        head = f"results beyond neuronjax.tolerance's bounds: {illegal.worst.as_text()}"
        raise GoldenMismatch(
            "program", change_text(report, head), report.leaves, change=report.change
        )


class ProgramsDiffer(AssertionError):
    """The error of `assert_same_program`."""


def assert_same_program(
    function: Callable[..., Any], expected: Callable[..., Any] | str | os.PathLike[str]
) -> Callable[..., None]:
    """Assert that two functions are captured as the same StableHLO.

    Source lines, names of functions and arguments, and positions of constants do not
    count; see `diagnostics.edits.canonical_text`.

    Args:
        function: as in `neuronjax.compare`.
        expected: another such function, or the path of a golden without its ending.

    Returns:
        A function of the arguments (arrays or ShapeDtypeStructs) that returns nothing.

    Raises:
        ProgramsDiffer: (when called) the error shows the first ops that differ.
    """

    def check(*args: Any, **kwargs: Any) -> None:
        def of(function: Any) -> Program:
            return Today.of(Asked.of(function), args, kwargs, with_inputs=False).program

        now = of(function)
        if isinstance(expected, str | os.PathLike):
            wanted = stored_program(golden_file.read(Path(expected)))
        else:
            wanted = of(expected)
        if fingerprint(now) == fingerprint(wanted):
            return
        lines = first_difference(wanted, now).split("\n")
        raise ProgramsDiffer(
            "\n  ".join(["the programs differ, first here (- expected):", *lines])
        )

    return check
