"""Goldens: what they hold, what they notice, and what they say about it."""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.errors import InvalidProgramError
from neuronjax.execution import interpreter
from neuronjax.testing import (
    GoldenMismatch,
    ProgramChangedWarning,
    check_stored,
    golden,
    golden_file,
)

slow = pytest.mark.slow
NAME = "layer"


def layer(params, x):
    return {"y": jnp.tanh(x @ params["w"]), "sum": jnp.sum(x)}


def arguments():
    draw = np.random.default_rng(0).standard_normal
    return {"w": draw((8, 4)).astype(np.float32)}, draw((2, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a golden of `layer`."""
    folder = tmp_path_factory.mktemp("golden")
    report = golden(NAME, layer, policy="bf16", directory=folder, update=True)(
        *arguments()
    )
    assert report.written
    return folder


def check(folder, function=layer, **options):
    options = {"policy": "bf16", "update": False, **options}
    return golden(NAME, function, directory=folder, **options)


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the golden that a test may damage."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def rewritten(folder, **changes):
    stored = golden_file.read(folder / NAME)
    dataclasses.replace(stored, **changes).write(folder / NAME)


@pytest.mark.slow
def test_an_unchanged_golden_reports_the_same_program(folder):
    report = check(folder)(*arguments())
    assert (report.program, report.today, report.leaves) == ("same", "", ())
    assert str(report).endswith("stored bits; today's program is the same")
    assert report.provenance["jax"] == jax.__version__
    assert report.records == []
    for path in (folder / NAME, folder / f"{NAME}.json", str(folder / f"{NAME}.npz")):
        assert check_stored(path).name == NAME


def test_what_is_stored(folder):
    stored = golden_file.read(folder / NAME)
    assert [leaf.path for leaf in stored.inputs] == ["params/w", "x"]
    assert [leaf.path for leaf in stored.outputs] == ["sum", "y"]
    assert stored.policy == nj.Policy.preset("bf16")
    assert any(
        "tanh" in o.name for o in nj.load(folder / f"{NAME}.mlirbc").program.walk()
    )
    for path in folder.iterdir():
        assert str(folder).encode() not in path.read_bytes()


def test_a_reviewer_reads_the_numbers_of_every_leaf(folder):
    described = json.loads((folder / f"{NAME}.json").read_text())
    x = arguments()[1]
    first = " ".join(f"{value:.6g}" for value in x.ravel()[:4])
    assert described["inputs"][1]["figures"] == (
        f"norm {np.linalg.norm(x):.6g}, {x.min():.6g} to {x.max():.6g}; {first} ..."
    )
    assert all("figures" in leaf for leaf in described["outputs"])


@slow
def test_large_arguments_are_kept_once(tmp_path):
    """And a golden of the version before, which had its own, holds and stays."""
    w, x = np.ones((64, 64), np.float32), np.ones((2, 64), np.float32)
    for name, function in (("a", jnp.matmul), ("b", lambda x, w: x @ w + 1)):
        guard = functools.partial(golden, name, function, directory=tmp_path)
        guard(update=True)(x, w)
        assert guard(update=False)(x, w).program == "same"
    [shared] = (tmp_path / "inputs").iterdir()
    assert shared.read_bytes() == w.tobytes()
    stored = golden_file.read(tmp_path / "a")
    assert stored.arrays["input/1"].view(np.float32).tolist() == w.ravel().tolist()
    shared.write_bytes(shared.read_bytes()[:-1])
    with pytest.raises(InvalidProgramError, match="does not hold the argument b"):
        golden_file.read(tmp_path / "a")


def test_a_changed_bit_of_a_weight_is_named(folder):
    params, x = arguments()
    changed = params["w"].copy()
    changed.view(np.uint32)[5, 2] ^= 1
    with pytest.raises(GoldenMismatch, match="not those that were stored") as caught:
        check(folder)({"w": changed}, x)
    [leaf] = caught.value.leaves
    assert (caught.value.kind, leaf.path, leaf.index) == (
        "arguments",
        "params/w",
        (5, 2),
    )
    codes = [f"(0x{v.view(np.uint32)[5, 2]:08x})" for v in (changed, params["w"])]
    assert leaf.actual == f"{float(changed[5, 2]):.9g} {codes[0]}"
    assert leaf.expected == f"{float(params['w'][5, 2]):.9g} {codes[1]}"
    assert (leaf.differing, leaf.compared) == (1, 32)


def test_another_target_policy_or_argument_is_named(folder):
    params, x = arguments()
    with pytest.raises(GoldenMismatch, match=r"target: trn1, expected trn2"):
        check(folder, target="trn1")(params, x)
    with pytest.raises(GoldenMismatch, match=r"policy\.auto_cast_type: 'fp16', expec"):
        check(folder, policy="fp16")(params, x)
    with pytest.raises(GoldenMismatch, match=r"x: is float32\[3,8\], expected float32"):
        check(folder)(params, np.ones((3, 8), np.float32))
    with pytest.raises(GoldenMismatch, match=r"arguments: 3, expected 2: with z"):
        check(folder, lambda params, x, z: layer(params, x))(params, x, x)


@pytest.mark.slow
def test_a_changed_result_names_the_leaf(copied):
    """As if the emulator had changed: other bits are stored than it gives."""
    stored = golden_file.read(copied / NAME)
    arrays = {name: array.copy() for name, array in stored.arrays.items()}
    arrays["output/1"][3] ^= 1
    y = dataclasses.replace(stored.outputs[1], sha256="0" * 64)
    rewritten(copied, arrays=arrays, outputs=(stored.outputs[0], y))
    with pytest.raises(GoldenMismatch, match="gives other bits") as caught:
        check(copied)(*arguments())
    [leaf] = caught.value.leaves
    assert (caught.value.kind, leaf.path, leaf.index) == ("bits", "y", (0, 3))
    assert leaf.differing == 1
    assert "the emulator changed" in str(caught.value)
    assert "pytest --neuronjax-update-golden" in str(caught.value)


def scaled(params, x):
    return {"y": jnp.tanh(x @ params["w"]) * 2, "sum": jnp.sum(x)}


@pytest.mark.slow
def test_another_program_is_a_warning_where_asked(folder):
    with pytest.warns(ProgramChangedWarning, match="with other bits") as caught:
        report = check(folder, scaled, changed_program="warn")(*arguments())
    assert caught[0].filename == __file__
    assert (report.program, report.today) == ("changed", "other bits")
    assert "y[0, 0]: " in str(caught[0].message)
    assert report.records[0]["path"] == "y"


@pytest.mark.slow_cases("fail")
@pytest.mark.parametrize("choice", [None, "edits", "bits", "fail"])
def test_another_program_of_other_bits_is_a_failure(folder, choice):
    with pytest.raises(GoldenMismatch, match=r"then: added multiply") as caught:
        check(folder, scaled, changed_program=choice)(*arguments())
    assert caught.value.kind == "program"
    assert caught.value.leaves[0].path == "y"
    assert "test_golden.py" in str(caught.value)


def same_bits(params, x):
    return {"y": jnp.tanh(x @ params["w"]), "sum": jnp.sum(jnp.abs(x) * jnp.sign(x))}


@slow
def test_another_program_of_the_same_bits(folder):
    for choice in ("bits", "edits"):
        with pytest.warns(ProgramChangedWarning, match="with same bits"):
            report = check(folder, same_bits, changed_program=choice)(*arguments())
        assert report.today == "same bits"
    with pytest.raises(GoldenMismatch, match="with same bits"):
        check(folder, same_bits, changed_program="fail")(*arguments())


@slow
def test_updating_what_holds_writes_nothing(copied):
    before = {p: p.stat().st_mtime_ns for p in copied.iterdir()}
    report = check(copied, update=True)(*arguments())
    assert not report.written
    assert {p: p.stat().st_mtime_ns for p in copied.iterdir()} == before


def test_a_missing_golden_says_how_to_make_it(tmp_path):
    with pytest.raises(GoldenMismatch, match="--neuronjax-update-golden") as caught:
        check(tmp_path)(*arguments())
    assert caught.value.kind == "missing"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [".json", ".mlirbc", ".npz"])
def test_damaged_files_are_refused(copied, ending):
    path = copied / f"{NAME}{ending}"
    path.write_bytes(path.read_bytes()[:-40] + b"x" * 40)
    with pytest.raises(InvalidProgramError, match=f"golden .*{NAME}"):
        check_stored(copied / NAME)


def test_both_sides_of_a_merge_are_refused(copied):
    """And not made anew, which would accept whatever is computed now."""
    path = copied / f"{NAME}.json"
    path.write_text(path.read_text().replace(' "version"', '<<<<<<< HEAD\n "version"'))
    with pytest.raises(InvalidProgramError, match="both sides of a merge") as caught:
        check_stored(copied / NAME)
    assert "git checkout --ours" in str(caught.value)


def test_a_lowered_program_and_a_saved_one(tmp_path):
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    lowered = nj.jit(lambda x: x * 2, policy="bf16").lower(x)
    guard = functools.partial(golden, "low", directory=tmp_path)
    assert guard(lowered, update=True)(x).written
    assert guard(lowered, update=False)(x).program == "same"
    saved = nj.load(tmp_path / "low.mlirbc", policy="bf16")
    with pytest.warns(ProgramChangedWarning, match="renamed: x -> leaves/0"):
        assert guard(saved, update=False)(x).today == "same bits"


def test_a_newer_version_is_refused(copied):
    path = copied / f"{NAME}.json"
    text = path.read_text()
    path.write_text(text.replace(f'"version": {golden_file.VERSION}', '"version": 99'))
    with pytest.raises(InvalidProgramError, match="version 99, this neuronjax reads"):
        check_stored(copied / NAME)


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(InvalidProgramError, match="use letters"):
        golden("../x", layer)
    with pytest.raises(InvalidProgramError, match="'warn', 'bits', 'fail'"):
        golden("x", layer, changed_program="never")


# ---- Whole programs.


def train_step(params, x):
    def loss(params):
        def body(carry, w):
            return jax.nn.gelu(carry @ w, approximate=False), ()

        carry, _ = jax.lax.scan(body, x, params["layers"])
        return jnp.mean(carry**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, gradients), value


def types():
    kind = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    return {"layers": kind((3, 8, 8))}, kind((4, 8))


CASES = {
    "stochastic": (
        nj.Policy(auto_cast="matmult", auto_cast_type="bf16", rounding="stochastic"),
        {"rounding_seed": 5},
    ),
    "delayed": (
        nj.Policy(
            auto_cast="matmult",
            auto_cast_type="fp8",
            scaling="delayed",
            amax_history_length=4,
        ),
        {},
    ),
    "ruled": (nj.Policy(rules=(nj.Rule(param="layers", auto_cast="matmult"),)), {}),
}


@slow
@pytest.mark.parametrize("name", CASES)
def test_train_step_goldens_hold_with_drawn_inputs(tmp_path, name):
    policy, options = CASES[name]
    guard = functools.partial(
        golden, name, train_step, policy=policy, directory=tmp_path, input_seed=3
    )
    report = guard(update=True, **options)(*types())
    assert report.written
    assert guard(update=False, **options)(*types()).program == "same"
    stored = golden_file.read(tmp_path / name)
    assert [leaf.seed for leaf in stored.inputs] == [3, 3]
    assert not any(array.startswith("input/") for array in stored.arrays)
    assert ("amax_history" in [leaf.path for leaf in stored.outputs]) == (
        name == "delayed"
    )


@slow
def test_a_fault_in_one_iteration_is_seen(tmp_path, monkeypatch):
    """One element of an elementary function inside a loop is one percent too large."""
    guard = functools.partial(
        golden, "step", train_step, policy="bf16", directory=tmp_path
    )
    guard(update=True)(*types())
    monkeypatch.setattr(interpreter, "_execute", faulty(interpreter._execute))
    with pytest.raises(GoldenMismatch, match="gives other bits") as caught:
        guard(update=False)(*types())
    assert "neuronjax compare" in str(caught.value)
    assert {leaf.path for leaf in caught.value.leaves} >= {"0/layers", "1"}


def faulty(execute):
    seen = []

    def wrong(i, operands, registers):
        [first, *rest] = results = execute(i, operands, registers)
        if type(i).__name__ != "Activation" or (seen and seen[0] is not i):
            return results
        seen.append(i)
        return [first.at[1, 2].multiply(1.01), *rest]

    return wrong


@slow
def test_large_outputs_are_sampled(tmp_path):
    def function(x):
        return x * 2, x[:4, :4]

    x = np.arange(64 * 100, dtype=np.float32).reshape(64, 100)
    guard = functools.partial(golden, "large", function, directory=tmp_path)
    guard(update=True)(x)
    stored = golden_file.read(tmp_path / "large")
    assert stored.arrays["output/0"].size == golden_file.SAMPLES
    assert stored.arrays["output/1"].size == 16
    big = stored.outputs[0]
    kept = stored.arrays["output/0"]
    wrong = (x * 2).copy()
    wrong[63, 99] += 1
    found = big.difference(wrong, kept)
    assert found is not None
    assert (found.index, found.differing, found.compared) == ((63, 99), 1, 512)
    wrong = (x * 2).copy()
    wrong[0, 1] += 1
    assert "none of 512 samples does" in str(big.difference(wrong, kept))


@slow
def test_a_mesh_and_complex_numbers(tmp_path):
    mesh = nj.make_mesh((4,), ("dp",))
    spec = jax.sharding.PartitionSpec("dp")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def mean(x):
        return x - jax.lax.pmean(jnp.exp(x), "dp")

    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
    for name, function, target in (
        ("mesh", mean, "trn2.48xlarge"),
        ("fft", jnp.fft.fft, "trn2"),
    ):
        guard = functools.partial(
            golden, name, function, target=target, directory=tmp_path
        )
        guard(update=True)(x)
        assert guard(update=False)(x).program == "same"
