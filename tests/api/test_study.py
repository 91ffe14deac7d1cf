"""`study`: records, pairs of runs, what is kept in a folder, named errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neuronjax as nj
from neuronjax.report.study_curves import Curve


def step(x, noise):
    return x - 0.25 * (x + noise), jnp.sum(x * x)


def train(jit, seed, *, steps=3):
    compiled = jit(step)
    rng = np.random.default_rng(seed)
    x = jnp.linspace(-1, 1, 8)
    for _ in range(steps):
        x, loss = compiled(x, rng.normal(size=8).astype(np.float32) / 64)
        yield {"loss": float(loss), "largest": float(jnp.abs(x).max())}


def run(folder=None, train=train, **options):
    return nj.study(
        train,
        policies={"native": "native", "bf16": nj.Policy(auto_cast="all")},
        seeds=2,
        folder=folder,
        progress=False,
        **options,
    )


@pytest.fixture(scope="module")
def found():
    return run()


@pytest.mark.slow
def test_one_record_a_step(found):
    assert len(found.records) == 2 * 2 * 3
    first = found.records[0]
    assert {"policy", "target", "seed", "step", "loss", "largest"} <= first.keys()
    native = [r["loss"] for r in found.records if r["policy"] == "native"]
    x = jnp.linspace(-1, 1, 8)
    assert native[0] == float(jax.jit(step)(x, jnp.zeros(8))[1])


@pytest.mark.slow
def test_machines_see_the_same_seeds_and_differ(found):
    losses = {(r["policy"], r["seed"], r["step"]): r["loss"] for r in found.records}
    for seed in (0, 1):
        a, b = losses["native", seed, 2], losses["bf16", seed, 2]
        assert a != b
        np.testing.assert_allclose(a, b, rtol=0.05)
    assert losses["native", 0, 2] != losses["native", 1, 2]


def test_what_is_complete_is_not_run_again(tmp_path, found):
    assert run(tmp_path).records == found.records
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 4
    # A run that was killed on its second line starts anew, the others are read.
    whole = files[1].read_text()
    files[1].write_text("\n".join(whole.splitlines()[:2]) + '\n{"lo')
    times = {file: file.stat().st_mtime_ns for file in files}
    assert run(tmp_path).records == found.records
    assert files[1].read_text() == whole
    assert [f for f in files if f.stat().st_mtime_ns != times[f]] == [files[1]]


def test_a_changed_loop_is_noticed(tmp_path, found):
    def halved(jit, seed, *, steps=3):
        for record in train(jit, seed, steps=steps):
            yield record["loss"] / 2

    run(tmp_path)
    with pytest.raises(nj.InvalidProgramError, match="rerun"):
        run(tmp_path, halved)
    again = run(tmp_path, halved, if_changed="rerun")
    assert again.records[0]["loss"] == found.records[0]["loss"] / 2


def test_shown_in_80_columns_and_as_a_picture(found):
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("bf16" in line for line in lines)
    curves, differences = found.plot().axes
    assert curves.get_ylabel() == "loss"
    assert differences.get_xlabel().startswith("step")
    assert "<" in found._repr_html_()


def test_one_seed_has_no_band():
    one = nj.study(train, policies=["native"], seeds=[0], progress=False)
    above, _ = one.plot().axes
    assert above.get_title(loc="left") == "loss: one seed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": []}, "without policies"),
        ({"policies": ["bf17"]}, "bf17"),
        ({"policies": ["bf16"], "targets": "trn9"}, "trn9"),
        ({"policies": ["bf16"], "seeds": ()}, "without seeds"),
        ({"policies": ["native"], "baseline": "fp8"}, "baseline is .fp8."),
        ({"policies": ["native"], "if_changed": "no"}, "if_changed"),
    ],
)
def test_named_errors(options, message):
    with pytest.raises(nj.InvalidProgramError, match=message):
        nj.study(train, progress=False, **options)


def test_a_loop_that_yields_nothing():
    with pytest.raises(nj.InvalidProgramError, match="yield"):
        nj.study(lambda jit, seed: [], policies=["native"], progress=False)


def test_target_and_targets_are_one_keyword():
    machines = {"policies": ["fp32"], "seeds": 1, "progress": False}
    first = nj.study(train, target=["trn1", "trn2"], **machines)
    second = nj.study(train, targets=["trn1", "trn2"], **machines)
    assert first.settings == second.settings
    assert len(first.settings) == 2
    with pytest.raises(nj.InvalidProgramError, match="give one of them"):
        nj.study(train, target="trn1", targets="trn1", **machines)


@pytest.mark.slow
def test_a_function_that_is_emulated_is_studied_under_every_policy():
    def train(jit, seed):
        step = jit(nj.jit(lambda x: jnp.sum(x @ x), target="trn1", policy="fp8"))
        x = jax.random.normal(jax.random.key(seed), (32, 32))
        yield float(step(x))

    policies = ["native", "fp32", "bf16", "fp8"]
    found = nj.study(train, policies=policies, seeds=1, progress=False)
    x = jax.random.normal(jax.random.key(0), (32, 32))
    losses = {record["policy"]: record["loss"] for record in found.records}
    assert losses["native"] == float(jax.jit(lambda x: jnp.sum(x @ x))(x))
    for policy in policies[1:]:
        wanted = nj.jit(lambda x: jnp.sum(x @ x), policy=policy)(x)
        assert losses[policy] == float(wanted)


def test_until_sure_stops_a_policy_that_is_decided(made_up_runs):
    """BF16 trains like the host; FP8 scatters by more than four seeds can tell."""

    def loss(policy, seed, n):
        late = 0.1 * (-1) ** seed if policy == "fp8" and n > 30 else 0.0
        return 2 ** (-n / 10) + 0.001 * seed + late

    ran = made_up_runs(loss, steps=40)
    policies = ["native", "bf16", "fp8"]
    found = nj.study(iter, policies=policies, seeds=4, until_sure=True, progress=False)
    counts = {policy: [p for p, _ in ran].count(policy) for policy in policies}
    assert counts == {"native": 4, "bf16": 2, "fp8": 4}
    assert found.verdicts()["bf16"].kind == "like"
    assert found.verdicts()["fp8"].kind == "undecided"
    assert found.confidence == pytest.approx(1 - 0.05 / 3)
    assert [row["seeds"] for row in found.final()] == [4, 2, 4]


# -- loops that train, and loops that do not -------------------------------------------


class Scaled(nnx.Module):
    def __init__(self, seed):
        self.scale = nnx.Param(jax.random.normal(jax.random.key(seed), (8,)) + 3)


def nnx_step(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda m: jnp.mean((m.scale * x) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


def nnx_loop(made):
    """A loop over new batches whose step is `made` by what the study gives."""

    def train(jit, seed, *, steps=12):
        model = Scaled(seed)
        optimizer = nnx.Optimizer(model, optax.adam(0.2), wrt=nnx.Param)
        run = made(jit)
        for n in range(steps):
            yield run(model, optimizer, jax.random.normal(jax.random.key(n), (4, 8)))

    return train


NNX_LOOPS = {
    "nnx.jit": lambda jit: jit(nnx.jit(nnx_step)),
    "plain": lambda jit: jit(nnx_step),
    "donated": lambda jit: jit(nnx_step, donate_argnums=(0, 1)),
    "decorator": lambda jit: jit(keep_unused=True)(nnx.jit(nnx_step)),
}


@pytest.mark.slow_cases("nnx.jit", "plain", "donated")
@pytest.mark.parametrize("made", NNX_LOOPS.values(), ids=NNX_LOOPS)
def test_what_a_step_writes_into_modules_is_trained(made):
    policies = ["native", "bf16"]
    found = nj.study(nnx_loop(made), policies=policies, seeds=2, progress=False)
    alone = nj.study(
        nnx_loop(lambda jit: nnx.jit(nnx_step)),
        policies=["native"],
        seeds=2,
        progress=False,
    )
    native = [r for r in found.records if r["policy"] == "native"]
    expected = [r["loss"] for r in alone.records]
    np.testing.assert_allclose([r["loss"] for r in native], expected, rtol=1e-5)
    for figures in found.final():
        assert figures["mean"] < 0.6 * np.mean([expected[0], expected[12]])
        assert figures["unmoved"] == ()
    assert "where it began" not in str(found)


def forgetful(jit, seed, *, steps=12):
    """Every step gets the first state."""
    compiled, rng = jit(step), np.random.default_rng(seed)
    for _ in range(steps):
        yield compiled(jnp.linspace(-1, 1, 8), rng.normal(size=8).astype(np.float32))[1]


def test_a_run_that_ends_where_it_began_says_so():
    found = nj.study(forgetful, policies=["native", "bf16"], seeds=2, progress=False)
    told = " ".join(str(found).split("native.")[-1].split())
    assert "loss ends where it began, within its noise, in" in told
    assert "native with seed 0, 1; bf16 with seed 0, 1." in told
    assert [row["unmoved"] for row in found.final()] == [(0, 1), (0, 1)]


NOISE = np.random.default_rng(0).normal(size=40)
CURVES = {
    "noise alone": (2.4 + 0.25 * NOISE, True),
    "noise, and it falls": (2.4 + 0.25 * NOISE - np.linspace(0, 1, 40), False),
    "it falls at first": (0.5 * 0.6 ** np.arange(12.0) + 0.03, False),
    "it falls at first, with noise": (np.exp(-np.arange(40)) + 0.05 * NOISE, False),
    "it rises": (np.linspace(0, 1, 9) ** 2, False),
    "it falls a little on one batch": (2.4 - 1e-6 * np.arange(40), False),
    "equal": (np.full(40, 2.4), True),
    "two equal": (np.full(2, 2.4), True),
    "three that fall": (np.array([3.0, 2.0, 1.0]), False),
    "one": (np.array([2.4]), False),
    "the same batches in every epoch": (np.tile([2.4, 2.6, 2.2, 2.5], 5), True),
    "diverged": (np.array([2.4] * 8 + [np.nan]), False),
}


@pytest.mark.parametrize("name", CURVES)
def test_which_curves_end_where_they_began(name):
    values, is_still = CURVES[name]
    curve = Curve((7,), np.arange(len(values)), values[None])
    assert curve.unmoved == ((7,) if is_still else ())


def test_a_folder_may_be_filled_by_several_studies(tmp_path):
    """Each has some of the policies and seeds: no run is repeated by the whole."""
    policies = {"native": "native", "bf16": nj.Policy(auto_cast="all")}
    for name, seed in (("bf16", 1), ("native", 0), ("bf16", 0), ("native", 1)):
        nj.study(
            train,
            policies={name: policies[name]},
            seeds=[seed],
            folder=tmp_path,
            progress=False,
        )
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(files) == 4
    assert run(tmp_path).records == run().records
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
