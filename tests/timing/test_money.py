"""Prices, hours, dollars and energy: by hand, and what has to hold of all numbers."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from neuronjax import hardware
from neuronjax.errors import InvalidProgramError
from neuronjax.timing import money, serving_money

TRN1 = hardware.resolve_target("trn1.32xlarge")
TRN2 = hardware.resolve_target("trn2.48xlarge")
GIVEN = money.Price(36.0, "given")
TIME = money.StepTime(
    compute_seconds=0.3,
    all_reduce_seconds=0.25,
    exposed_seconds=0.15,
    launch_seconds=0.05,
)


# -- prices ----------------------------------------------------------------------------


def test_list_prices_say_where_they_are_from():
    price = money.price_of(TRN1, None)
    assert (price.usd_per_hour, price.terms) == (21.5, "on demand")
    assert price.basis == "AWS, on demand, us-east-1, 2022-10"
    block = money.price_of(TRN1, None, "Capacity Block")
    assert (block.usd_per_hour, block.terms) == (9.532, "Capacity Block")
    assert money.price_of(TRN2, None).basis == "AWS, Capacity Block, us-east-2, 2026-01"


def test_every_list_price_is_dated():
    for instance in hardware.INSTANCES.values():
        for price in filter(None, (instance.price, instance.block_price)):
            assert 0 < price.usd_per_hour < 1000
            year, month = map(int, price.date.split("-"))
            assert 2022 <= year <= 2100
            assert 1 <= month <= 12
            assert price.region.count("-") == 2
            assert price.source
        if instance.price:
            assert instance.price.terms == "on demand"
        if instance.block_price:
            assert instance.block_price.terms == "Capacity Block"


def test_the_callers_price_comes_first():
    assert money.price_of(TRN1, 10.0) == money.Price(10.0, "given")
    assert money.price_of(TRN1, {"trn1.32xlarge": 9.0}).usd_per_hour == 9.0
    assert money.price_of(TRN1, {"trn2.48xlarge": 9.0}).usd_per_hour == 21.5


def test_several_instances_cost_several_times_as_much():
    four = hardware.resolve_target("trn1.32xlarge:4")
    assert money.price_of(four, None).usd_per_hour == 4 * 21.5
    assert money.price_of(four, {"trn1.32xlarge": 2.0}).usd_per_hour == 8.0


@pytest.mark.parametrize("name", ["trn2", "trn3-ultraserver-gen1", "trn2u.48xlarge"])
def test_no_price_is_invented(name):
    with pytest.raises(
        InvalidProgramError, match=r"no list price(.|\n)*price_per_hour"
    ):
        money.price_of(hardware.resolve_target(name), None)


def test_terms():
    with pytest.raises(InvalidProgramError, match=r"trn2.48xlarge \(on demand\)"):
        money.price_of(TRN2, None, "on demand")
    with pytest.raises(InvalidProgramError, match="terms is 'spot'"):
        money.price_of(TRN1, None, "spot")  # type: ignore[arg-type]
    with pytest.raises(InvalidProgramError, match="price_per_hour of 0"):
        money.price_of(TRN1, 0.0)


# -- training --------------------------------------------------------------------------


def test_training_by_hand():
    """0.5 s a step; 7,200 steps are an hour, or at 80 % of the time 1.25 hours."""
    run = money.TrainingRun(
        steps=7_200, tokens_per_step=1_000, utilization=0.8, watts=2_000
    )
    cost = money.training_cost("m", TIME, GIVEN, run, copies=4)
    assert cost.step_seconds == pytest.approx(0.5)
    assert cost.tokens_per_second == pytest.approx(8_000)
    assert cost.tokens == 7_200 * 4_000
    assert cost.hours == pytest.approx(1.25)
    assert cost.dollars == pytest.approx(45.0)
    assert cost.dollars_per_million_tokens == pytest.approx(45.0 / 28.8)
    assert cost.energy_kwh == pytest.approx(2.5)
    assert cost.dollars_per_batch == pytest.approx(36.0 * 0.5 / 3600 / 4)


def test_tokens_in_place_of_steps():
    run = money.TrainingRun(tokens=10_001, tokens_per_step=1_000)
    assert money.training_cost("m", TIME, GIVEN, run, copies=2).steps == 6


def test_what_is_not_known_is_none():
    cost = money.training_cost("m", TIME, GIVEN, money.TrainingRun())
    unknown = ("tokens_per_second", "steps", "tokens", "hours", "dollars", "energy_kwh")
    assert {getattr(cost, name) for name in unknown} == {None}
    assert cost.record["dollars_per_million_tokens"] is None
    assert cost.record["step_seconds"] == pytest.approx(0.5)
    assert cost.record["usd_per_hour"] == 36.0


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (money.TrainingRun(steps=1, tokens=1.0, tokens_per_step=1), "not both"),
        (money.TrainingRun(tokens=1.0), "tokens_per_step"),
        (money.TrainingRun(steps=0), "steps of 0"),
        (money.TrainingRun(watts=-1.0), "watts of -1"),
        (money.TrainingRun(utilization=0.0), "utilization of 0"),
        (money.TrainingRun(utilization=1.1), "utilization of 1.1"),
    ],
)
def test_runs_that_make_no_sense(run, message):
    with pytest.raises(InvalidProgramError, match=message):
        run.check()


positive = st.floats(1e-6, 1e6)


@given(positive, positive, st.integers(1, 10**9), st.floats(0.01, 1.0), positive)
def test_dollars_of_a_run_are_those_of_its_tokens(seconds, usd, steps, share, tokens):
    run = money.TrainingRun(steps=steps, tokens_per_step=tokens, utilization=share)
    time = money.StepTime(compute_seconds=seconds)
    cost = money.training_cost("m", time, money.Price(usd, "given"), run, copies=3)
    per_million, total = cost.dollars_per_million_tokens, cost.tokens
    assert per_million is not None
    assert total is not None
    assert cost.dollars == pytest.approx(per_million * total / 1e6)
    assert cost.dollars == pytest.approx(3 * steps * cost.dollars_per_batch / share)


# -- serving ---------------------------------------------------------------------------

TRAFFIC = serving_money.Traffic(
    prompt_tokens=100, output_tokens=11, batch=4, prefill_batch=2
)
MEMORY = serving_money.ServedMemory(
    needed_bytes=700, capacity_bytes=1_000, weights_bytes=200, kv_cache_bytes=400
)


def test_serving_by_hand():
    """2 prefills of 0.2 s and 10 decodes of 0.04 s serve 4 requests in 0.8 s."""
    cost = serving_money.serving_cost(
        "m", 0.2, 0.04, GIVEN, TRAFFIC, MEMORY, copies=10, devices=20, policy="bf16"
    )
    assert cost.time_to_first_token_seconds == 0.2
    assert cost.inter_token_seconds == 0.04
    assert cost.loaded_inter_token_seconds == pytest.approx(0.06)
    assert cost.request_seconds == pytest.approx(0.6)
    assert cost.requests_per_second == pytest.approx(10 * 4 / 0.8)
    assert cost.output_tokens_per_second == pytest.approx(10 * 44 / 0.8)
    # A copy costs 0.001 dollars a second; 0.1 s of prefill and 0.1 s of decode each.
    assert cost.dollars_per_million_input_tokens == pytest.approx(1.0)
    assert cost.dollars_per_million_output_tokens == pytest.approx(100 / 11)
    assert cost.dollars_per_million_tokens == pytest.approx(200 / 111)
    assert cost.max_batch == 7  # 700 - 400 are fixed, 100 a sequence
    assert cost.fits
    assert cost.record["usd_per_hour"] == 36.0


@given(
    positive, positive, positive, st.integers(2, 4096), st.integers(1, 64),
    st.floats(0.01, 1.0),
)  # fmt: skip
def test_input_and_output_pay_for_everything(
    prefill, decode, usd, answer, batch, share
):
    traffic = serving_money.Traffic(
        prompt_tokens=128, output_tokens=answer, batch=batch, utilization=share
    )
    cost = serving_money.serving_cost(
        "m", prefill, decode, money.Price(usd, "given"), traffic, MEMORY, copies=3
    )
    per_request = usd / 3600 / (cost.requests_per_second * share)
    split = (
        128 * cost.dollars_per_million_input_tokens
        + answer * cost.dollars_per_million_output_tokens
    )
    assert split / 1e6 == pytest.approx(per_request)
    whole = cost.dollars_per_million_tokens * (128 + answer)
    assert whole / 1e6 == pytest.approx(per_request)
    assert cost.loaded_inter_token_seconds >= cost.inter_token_seconds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens of 0"),
        ({"output_tokens": 1}, "output_tokens of 1"),
        ({"prefill_batch": 3}, "prefilled 3 at a time"),
        ({"utilization": 2.0}, "utilization of 2"),
    ],
)
def test_traffic_that_makes_no_sense(change, message):
    with pytest.raises(InvalidProgramError, match=message):
        dataclasses.replace(TRAFFIC, **change).check()


def test_without_a_cache_no_batch_is_the_largest():
    assert dataclasses.replace(MEMORY, kv_cache_bytes=0).max_batch(4) is None
