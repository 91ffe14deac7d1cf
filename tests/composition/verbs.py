"""The verbs of the matrix: what each is asked about a program, and what must hold.

A verb is a function of the name of a kind and a folder. It passes where the answer is
right: bits or NumPy's float64 numbers agree, a planted fault is named at its own line
and a healthy program has none, a bound holds and can fail, a time is the sum of its
parts.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax.cli import app
from neuronjax.testing import GoldenMismatch, golden
from tests.composition import programs
from tests.composition.programs import KINDS, line_of, program

Verb = Callable[[str, Path], None]


def bits(tree: Any) -> list[tuple[Any, bytes]]:
    """Return the dtype and the bytes of every leaf."""
    leaves = (np.asarray(leaf) for leaf in jax.tree.leaves(tree))
    return [(leaf.dtype, leaf.tobytes()) for leaf in leaves]


def called(kind: str, core: str = "healthy") -> Any:
    """Return what a call of the emulated program returns."""
    return program(kind, core)(*KINDS[kind].arguments())


def number(kind: str, outputs: Any) -> float:
    """Return the answer among the outputs of a call."""
    return float(np.asarray(KINDS[kind].value(outputs)))


def asked(kind: str, verb: Callable[..., Any], core: str = "healthy") -> Any:
    """Return what a verb answers about a program."""
    return verb(program(kind, core))(*KINDS[kind].arguments())


# -- values ----------------------------------------------------------------------------


def jit(kind: str, folder: Path) -> None:
    """The result is NumPy's; of the faulty program it is not."""
    expected, rtol = KINDS[kind].expected().value, KINDS[kind].rtol
    assert number(kind, called(kind)) == pytest.approx(expected, rel=rtol)
    assert number(kind, called(kind, "faulty")) != pytest.approx(expected, rel=5 * rtol)


def op_by_op(kind: str, folder: Path) -> None:
    """The bits are those of the compiled run."""
    with jax.disable_jit():
        found = called(kind)
    assert bits(found) == bits(called(kind))


def grad(kind: str, folder: Path) -> None:
    """The gradient of the numbers of the core is NumPy's."""
    arguments = KINDS[kind].arguments()
    step, last = program(kind), len(arguments) - 1
    found = jax.grad(lambda *each: KINDS[kind].value(step(*each)), last)(*arguments)
    expected = KINDS[kind].expected().gradient
    atol = KINDS[kind].rtol * np.abs(expected).max()
    np.testing.assert_allclose(KINDS[kind].numbers(found), expected, rtol=0, atol=atol)


def vmap(kind: str, folder: Path) -> None:
    """An example has the bits that it has alone; where rounding is stochastic, the
    number within its roundings."""
    arguments = KINDS[kind].arguments()
    others = jax.tree.map(_other, KINDS[kind].arguments())
    batch = jax.tree.map(lambda *each: jnp.stack(each), arguments, others)
    found = jax.vmap(program(kind))(*batch)
    alone = [
        called(kind),
        program(kind)(*jax.tree.map(_other, KINDS[kind].arguments())),
    ]
    for n, expected in enumerate(alone):
        one = jax.tree.map(lambda leaf, n=n: leaf[n], found)
        if KINDS[kind].policy is programs.STOCHASTIC:
            wanted = pytest.approx(number(kind, expected), rel=KINDS[kind].rtol)
            assert number(kind, one) == wanted
        else:
            assert bits(one) == bits(expected)


def _other(leaf: Any) -> Any:
    """Return other numbers of the same type: codes and scales stay."""
    return leaf[::-1] if leaf.dtype == jnp.float32 else leaf


def collect(kind: str, folder: Path) -> None:
    """Results keep their bits; the largest numbers are counted at the core's line. A
    program that was made without `collect` is called inside a function."""
    kinds = ("result", "add", "finite", "cast", "matmul")
    if KINDS[kind].file or KINDS[kind].mapped:
        step = nj.jit(
            lambda *arguments: program(kind)(*arguments),
            target=KINDS[kind].target,
            policy=KINDS[kind].policy,
            collect=nj.Collect(kinds=kinds),
        )
    else:
        step = KINDS[kind].emulated(collect=nj.Collect(kinds=kinds))
    found = step(*KINDS[kind].arguments())
    if KINDS[kind].state:
        (outputs, statistics), history = found
        outputs = outputs, history
    else:
        outputs, statistics = found
    assert bits(outputs) == bits(called(kind))
    casts = [r for r in statistics.records if r["kind"] == "cast"]
    squares = [r for r in statistics.records if line_of("HEALTHY") in r["source"]]
    _, a, x = (np.asarray(each, np.float64) for each in programs.arrays())
    if kind not in ("sparse", "mx"):
        assert max(r["amax"] for r in casts) == pytest.approx(abs(a).max(), rel=0.1)
    assert squares, [r["source"] for r in statistics.records]
    largest = abs(x - x.mean()).max()
    assert max(r["amax"] for r in squares) >= largest / 2


# -- what is wrong ---------------------------------------------------------------------


def compare(kind: str, folder: Path) -> None:
    """The fault is named at its line, and first; the healthy program has none."""
    found = asked(kind, nj.compare, "faulty")
    assert found.faults, str(found)
    assert line_of("FAULT") in found.faults[0].record.source, str(found)
    found = asked(kind, nj.compare)
    assert not found.faults, str(found)


def compare_against(kind: str, folder: Path) -> None:
    """The edit is named at its line, and is the first op that differs."""
    assert asked(kind, lambda step: nj.compare(step, against=step)).is_same
    found = asked(kind, lambda step: nj.compare(step, against=program(kind, "faulty")))
    assert not found.is_same
    assert found.first is not None, str(found)
    edits = [edit.op.source for edit in (*found.first.because, *found.edits)]
    edited = found.first.after.source, *edits
    assert any(line_of("FAULT") in source for source in edited), str(found)


def compare_dump(kind: str, folder: Path) -> None:
    """The program's own results are legal; those of the faulty one are not, and the
    core is among the ops that may have made them."""
    path = asked(kind, nj.tolerance).outputs[0].path

    def about(core: str) -> Any:
        leaf = jax.tree.leaves(_results(kind, called(kind, core)))[0]
        dump, names = {"tensor": np.asarray(leaf)}, {"tensor": path}
        return asked(kind, lambda step: nj.compare_dump(step, dump, names=names))

    assert about("healthy").is_legal
    found = about("faulty")
    assert not found.is_legal
    assert found.first is not None
    lines = [place.source for place in found.first.ops]
    assert any(line_of("HEALTHY") in line for line in lines), str(found)


def _results(kind: str, outputs: Any) -> Any:
    """Return the outputs of a call without the state that it hands on."""
    return outputs[0] if KINDS[kind].state else outputs


def tolerance(kind: str, folder: Path) -> None:
    """The bound holds for the emulated result, around NumPy's, and the faulty result is
    outside of it."""
    found = asked(kind, nj.tolerance)
    expected, rtol = KINDS[kind].expected().value, KINDS[kind].rtol
    value, bound = (KINDS[kind].scalar(x) for x in (found.expected, found.atol))
    assert float(value) == pytest.approx(expected, rel=rtol)
    assert 0 < float(bound) < 0.1 * expected
    outputs, wrong = (
        _results(kind, called(kind, core)) for core in ("healthy", "faulty")
    )
    assert found.allows(outputs), str(found.check(outputs))
    assert not found.allows(wrong)


def check(kind: str, folder: Path) -> None:
    """What the compiler refuses is an error at its line; the core alone is legal."""
    found = asked(kind, nj.check, "refused")
    errors = [f for f in found.findings if f.severity == "error"]
    assert any(line_of("REFUSED") in f.location for f in errors), str(found)
    errors = [f for f in asked(kind, nj.check).findings if f.severity == "error"]
    assert {f.rule for f in errors} == set(KINDS[kind].errors), str(errors)


# -- time and money --------------------------------------------------------------------


def profile(kind: str, folder: Path) -> None:
    """The time is the sum of its parts, and the core has one; results are those of a
    run."""
    found = asked(kind, nj.profile)
    timeline = found.timeline
    total = timeline.scheduled_seconds + timeline.around_seconds
    assert found.total_seconds == pytest.approx(total)
    busy = _busy(found.by_engine())
    assert busy == pytest.approx(_busy(found.by_source()))
    assert busy == pytest.approx(_busy(found.by_op()))
    longest = max(timeline.busy_seconds(queue) for queue in found.instruction_counts)
    assert 0 < longest <= timeline.scheduled_seconds <= busy + timeline.around_seconds
    assert any(line_of("HEALTHY") in line for line in found.by_source()), str(found)
    outputs = found.outputs
    assert bits(outputs) == bits(called(kind))


def _busy(parts: Any) -> float:
    return math.fsum(math.fsum(usage.seconds.values()) for usage in parts.values())


def estimate(kind: str, folder: Path) -> None:
    """Hours are so many steps, of the time that `profile` says; dollars are hours."""
    options = dict(steps=1000, price_per_hour=3.0)
    found = asked(kind, lambda step: nj.estimate(step, **options))
    (cost,) = found.costs
    time = cost.time
    profiled = asked(kind, nj.profile).total_seconds
    assert time.compute_seconds == pytest.approx(profiled, rel=1e-6)
    parts = time.compute_seconds + time.exposed_seconds + time.launch_seconds
    assert found.step_seconds == pytest.approx(parts)
    assert found.hours == pytest.approx(1000 * parts / 3600)
    assert found.dollars == pytest.approx(3 * found.hours)


# -- many runs -------------------------------------------------------------------------


def search_precision(kind: str, folder: Path) -> None:
    """Under the policy that is found, results are within the tolerance of FP32's."""
    both = [_with_callbacks(kind, name) for name in ("bf16", "fp32")]
    options = dict(candidates=both, reference=both[1], variations=0, progress=False)
    found = asked(
        kind, lambda step: nj.search_precision(step, tolerance=0.05, **options)
    )
    assert found.error <= found.tolerance
    assert found.seconds <= found.baseline_seconds
    runs = [_plain_number(kind, policy) for policy in (found.policy, both[1])]
    assert runs[0] == pytest.approx(runs[1], rel=0.05)


def _with_callbacks(kind: str, name: str) -> nj.Policy:
    """Return a preset, which runs callbacks where the kind's policy does."""
    policy = KINDS[kind].policy
    kept = "error" if isinstance(policy, str) else policy.callbacks
    return dataclasses.replace(nj.Policy.preset(name), callbacks=kept)


def _plain_number(kind: str, policy: Any) -> float:
    """Return the answer under another policy, which has no amax history."""
    step = KINDS[kind].emulated(policy=policy)
    outputs = step(*KINDS[kind].arguments())
    if KINDS[kind].state:
        outputs = outputs[0]
    return float(np.asarray(KINDS[kind].scalar(outputs)))


def study(kind: str, folder: Path) -> None:
    """What a run yields is the number of a call."""
    step, policy = program(kind), KINDS[kind].policy

    def train(jit: Any, seed: int) -> Any:
        run, arguments = jit(step), KINDS[kind].arguments()
        if KINDS[kind].state:
            run = run.with_amax_history(run.init_amax_history(*arguments))
        yield number(kind, run(*arguments))

    policies = {"own": policy}
    found = nj.study(
        train, policies=policies, target=KINDS[kind].target, seeds=1, progress=False
    )
    (record,) = found.records
    expected = pytest.approx(number(kind, called(kind)), rel=1e-6)
    if KINDS[kind].policy is programs.STOCHASTIC:  # the run counts its calls from 0
        expected = pytest.approx(KINDS[kind].expected().value, rel=KINDS[kind].rtol)
    assert record["loss"] == expected


# -- kept ------------------------------------------------------------------------------


def goldens(kind: str, folder: Path) -> None:
    """A golden holds for its program; of the faulty one it says who changed it."""
    options = dict(directory=folder, rounding_seed=programs.SEED)
    keep = lambda step: golden("step", step, update=True, **options)  # noqa: E731
    hold = lambda step: golden("step", step, update=False, **options)  # noqa: E731
    assert asked(kind, keep).written
    assert asked(kind, hold).program == "same"
    with pytest.raises(GoldenMismatch) as caught:
        asked(kind, hold, "faulty")
    assert caught.value.kind == "program"
    assert line_of("FAULT") in str(caught.value)


def export(kind: str, folder: Path) -> None:
    """The emulation, exported, has the bits of a call."""
    step = program(kind)
    jitted = step if isinstance(step, nj.Emulated) else jax.jit(step)
    with nj.exportable():
        exported = jax_export.export(jitted)(*KINDS[kind].arguments())
    assert bits(exported.call(*KINDS[kind].arguments())) == bits(called(kind))


def command_line(kind: str, folder: Path) -> None:
    """`neuronjax run` has the bits of a call, `neuronjax compare` names the fault."""
    output = folder / "results.npz"
    words = ["run", *_source(kind, "healthy", folder), "--output", str(output)]
    ran = CliRunner().invoke(app, [*words, "--no-cache"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    with np.load(output) as found:
        assert bits(list(found.values())) == bits(called(kind))
    words = ["check", *_source(kind, "refused", folder), "--json"]
    ran = CliRunner().invoke(app, words, catch_exceptions=False)
    findings = json.loads(ran.stdout)["findings"]
    assert any(line_of("REFUSED") in f["location"] for f in findings), findings


def _source(kind: str, core: str, folder: Path) -> list[str]:
    """Return how a user names a program on the command line."""
    if not KINDS[kind].file:
        return [f"{programs.FILE}:{kind}_{core}"]
    path = folder / f"{kind}_{core}"
    path.write_bytes(KINDS[kind].saved(core))
    setting = ["--target", KINDS[kind].target, "--policy", str(KINDS[kind].policy)]
    inputs = folder / "inputs.npz"
    np.savez(inputs, *KINDS[kind].arguments())
    if kind == "symbolic":
        setting += ["--args", "f32[32,4] f32[4,2,32] f32[4,64]"]
    if core == "healthy":
        setting += ["--inputs", str(inputs)]
    return [str(path), *setting]


VERBS: dict[str, Verb] = {
    "jit": jit,
    "op by op": op_by_op,
    "grad": grad,
    "vmap": vmap,
    "collect": collect,
    "compare": compare,
    "compare(against=)": compare_against,
    "compare_dump": compare_dump,
    "tolerance": tolerance,
    "check": check,
    "profile": profile,
    "estimate": estimate,
    "search_precision": search_precision,
    "study": study,
    "goldens": goldens,
    "jax.export": export,
    "command line": command_line,
}
