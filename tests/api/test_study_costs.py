"""Dollars to the same loss: an estimate's rows, times a study's ratios of steps."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.api.study_costs import labelled
from neuronjax.hardware import resolve_target
from neuronjax.report.money_tables import dollars
from neuronjax.timing.collectives import queued_launch_seconds

SHAPES = (
    jax.ShapeDtypeStruct((256, 256), jnp.float32),
    jax.ShapeDtypeStruct((512, 256), jnp.float32),
)
PRICED = {"instance": "trn2.48xlarge", "steps": 1000}


def step(w, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - gradient, loss


@pytest.fixture
def study(made_up_runs):
    def studied(**speeds):
        def loss(policy, seed, n):
            return 1 + math.exp(-n * speeds[policy] / 40) + 0.001 * seed

        made_up_runs(loss, steps=100)
        return nj.study(iter, policies=list(speeds), seeds=3, progress=False)

    return studied


def test_a_policy_pays_for_the_steps_that_it_needs(study):
    found = study(native=1.0, bf16=1.0, fp8=0.5)
    costs = found.costs(step, **PRICED)(*SHAPES)
    plain = nj.estimate(step, policy=["bf16", "fp8"], **PRICED)(*SHAPES)
    ratios = {row["machine"]: row["steps_ratio"] for row in found.final()}
    assert ratios["fp8"] == pytest.approx(2.0, rel=0.05)
    for row, estimated in zip(costs.rows, plain.costs, strict=True):
        assert row.policy == estimated.policy
        assert row.step_seconds.estimate == estimated.step_seconds
        ratio = ratios[row.policy]
        assert row.steps == pytest.approx(1000 * ratio)
        assert row.hours == pytest.approx(estimated.hours * ratio)
        assert row.dollars.estimate == pytest.approx(estimated.dollars * ratio)
        assert row.dollars.low <= row.dollars.estimate <= row.dollars.high


def test_a_machine_is_not_named_twice():
    """The label of a study on several chips holds the chip, which a row says anyway."""
    labels = ("trn2/bf16", "trn2/fp8", "trn3/bf16")
    policies = {label: nj.Policy.preset(label.partition("/")[2]) for label in labels}
    targets = {label: label.partition("/")[0] for label in labels}
    found = labelled(policies, targets, "trn2.48xlarge")
    assert {label: policy.name for label, policy in found.items()} == {
        "trn2/bf16": "bf16",
        "trn2/fp8": "fp8",
    }


def test_the_interval_holds_that_of_the_seconds(study):
    costs = study(native=1.0, bf16=1.0).costs(step, **PRICED)(*SHAPES)
    (row,) = costs.rows
    seconds = row.step_seconds
    assert row.dollars.high / row.dollars.estimate >= seconds.high / seconds.estimate


@pytest.mark.parametrize("rows", [512, 106_496])
def test_no_step_is_shorter_than_a_launch(study, rows):
    """The launch takes longer than the small program, and than the lower end of the
    large one's interval."""
    shapes = (SHAPES[0], jax.ShapeDtypeStruct((rows, 256), jnp.float32))
    priced = PRICED | {"instance": "trn2.3xlarge", "price_per_hour": 3.0}
    costs = study(native=1.0, bf16=1.0).costs(step, **priced)(*shapes)
    (row,), (profiled,) = costs.rows, costs.estimate.profiles
    launch = queued_launch_seconds(resolve_target("trn2.3xlarge"), 4, 0.0)
    assert profiled.confidence.low_seconds < launch
    assert (launch < profiled.total_seconds) == (rows > 512)
    assert row.step_seconds.low == pytest.approx(launch)
    assert row.step_seconds.estimate >= row.step_seconds.low
    high = max(profiled.confidence.high_seconds, launch)
    assert row.step_seconds.high >= high * (1 - 1e-9)


def test_what_diverges_has_no_price(study):
    found = study(native=1.0, bf16=1.0)
    records = [
        record | {"loss": np.nan} if record["policy"] == "bf16" else record
        for record in found.records
    ]
    lost = dataclasses.replace(found, records=records)
    (row,) = lost.costs(step, **PRICED)(*SHAPES).rows
    assert row.verdict == "diverges"
    assert row.steps is row.hours is row.dollars is None


def test_what_stops_falling_at_a_worse_loss_has_no_price(made_up_runs):
    """It reaches its own floor hardly later than the baseline passes that value."""

    def loss(policy, seed, n):
        fall = 1 + math.exp(-n / 40) + 0.001 * seed + 0.002 * math.sin(9 * n + seed)
        return fall if policy == "native" else max(fall, 1.4 + 0.002 * math.sin(7 * n))

    made_up_runs(loss, steps=100)
    policies = ["native", "bf16"]
    found = nj.study(iter, policies=policies, seeds=3, progress=False)
    (row,) = found.costs(step, **PRICED)(*SHAPES).rows
    assert row.verdict == "worse"
    assert row.steps is row.hours is row.dollars is None


def test_the_table_fits_and_says_why_fewer_bits_take_longer(study):
    against = nj.Machine(name="8 x H100", step_seconds=0.002, price_per_hour=55.0)
    found = study(native=1.0, bf16=1.0, fp8=1.0)
    costs = found.costs(step, against=against, **PRICED)(*SHAPES)
    text = str(costs)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "8 x H100" in text
    assert "(95 %)" in text
    looked_at = dataclasses.replace(found, confidence=0.975)
    assert "(97.5 %)" in str(looked_at.costs(step, **PRICED)(*SHAPES))
    assert costs.records[-1]["verdict"] == "given"
    bf16, fp8 = (profiled.total_seconds for profiled in costs.estimate.profiles)
    assert ("with fp8 and" in " ".join(text.split())) == (fp8 > bf16)
    assert costs.notes == costs.estimate.notes


def test_the_table_has_verdicts_intervals_and_ratios_to_the_first_row(study):
    against = nj.Machine(name="8 x H100", step_seconds=0.002, price_per_hour=55.0)
    found = study(native=1.0, bf16=1.0, fp8=0.5)
    x = jax.ShapeDtypeStruct((2**19, 256), jnp.float32)  # no launch takes longer
    costs = found.costs(step, against=against, **PRICED)(SHAPES[0], x)
    lines = [" ".join(line.split()) for line in str(costs).splitlines()]
    first, slower, given = costs.rows
    assert slower.words == found.verdicts()["fp8"].words("native")
    assert slower.words.startswith("needs 1.9")
    for row in costs.rows:
        ratio = row.dollars.estimate / first.dollars.estimate
        assert any(
            line.startswith(row.machine) and line.endswith(f" {ratio:.2f}")
            for line in lines
        )
    assert [given.words in line for line in lines].count(True) == 1
    low, high = dollars(slower.dollars.low), dollars(slower.dollars.high)
    (below,) = (n for n, line in enumerate(lines) if f"{low} to" in line)
    assert lines[below].startswith("fp8 ")
    assert lines[below + 1].endswith(high)
    dear = dataclasses.replace(against, price_per_hour=5.5e10)
    wide = found.costs(step, against=dear, **PRICED)(*SHAPES)
    assert max(map(len, str(wide).splitlines())) <= 80
    assert "$30,555,556" in str(wide)


def test_a_study_prices_its_own_step():
    def train(jit, seed):
        for n in range(20):
            yield 1 / (n + 1) + 0.001 * seed

    options = {"policies": ["native", "bf16"], "seeds": 2, "progress": False}
    found = nj.study(train, at=(step, *SHAPES), **options, **PRICED)
    assert "cost and interval, if native needs" in str(found)
    assert found.as_dict()["costs"] == found.cost.records
    assert nj.study(train, **options).cost is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 100}, "without at="),
        ({"instance": "trn1.32xlarge"}, "without at="),
        (
            {"at": (step, *SHAPES), "instance": "trn1.2xlarge"},
            "unknown: trn2 was emulated",
        ),
        ({"margin": -1}, "margin"),
    ],
)
def test_named_errors(options, message):
    def train(jit, seed):
        yield from (2.0, 1.0)

    with pytest.raises(nj.InvalidProgramError, match=message):
        nj.study(train, policies=["native", "bf16"], progress=False, **options)
