"""`study`: records, pairs of runs, what is kept in a folder, named errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj


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


def test_one_record_a_step(found):
    assert len(found.records) == 2 * 2 * 3
    first = found.records[0]
    assert {"policy", "target", "seed", "step", "loss", "largest"} <= first.keys()
    native = [r["loss"] for r in found.records if r["policy"] == "native"]
    x = jnp.linspace(-1, 1, 8)
    assert native[0] == float(jax.jit(step)(x, jnp.zeros(8))[1])


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policies": []}, "without policies"),
        ({"policies": ["bf17"]}, "bf17"),
        ({"policies": ["bf16"], "targets": "trn9"}, "trn9"),
        ({"policies": ["bf16"], "seeds": ()}, "without seeds"),
        ({"policies": ["native"], "baseline": "fp8"}, "no machine is called"),
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
