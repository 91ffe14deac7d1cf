"""`estimate_serving`: two programs over one cache, from shapes."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.api import instance_costs
from neuronjax.api.estimate_serving import estimate_serving
from neuronjax.api.profile import profile
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.timing.collectives import launch_seconds, queued_launch_seconds
from neuronjax.timing.work import Core

WIDTH, LENGTH, BATCH = 512, 1024, 4
PARAMS = {
    "qkv": jax.ShapeDtypeStruct((WIDTH, 3 * WIDTH), jnp.bfloat16),
    "out": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16),
}
POSITION = jax.ShapeDtypeStruct((), jnp.int32)
TRAFFIC = dict(prompt_tokens=256, output_tokens=65, batch=BATCH)


def attend(params, cache, x, start):
    """One layer of attention of T new tokens to a cache."""
    q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
    keys, values = (
        jax.lax.dynamic_update_slice(old, new, (0, start, 0))
        for old, new in zip(cache, (k, v), strict=True)
    )
    scores = jnp.einsum("btd,bsd->bts", q, keys).astype(jnp.float32)
    seen = jnp.arange(LENGTH) <= start + jnp.arange(x.shape[1])[:, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(x.dtype)
    return weights @ values @ params["out"], (keys, values)


def prefill(params, cache, prompt):
    mixed, cache = attend(params, cache, prompt, 0)
    return mixed[:, -1], cache


def decode(params, cache, token, position):
    mixed, cache = attend(params, cache, token[:, None], position)
    return mixed[:, 0], cache


def arguments(batch: int = BATCH):
    def cache(batch):
        return (jax.ShapeDtypeStruct((batch, LENGTH, WIDTH), jnp.bfloat16),) * 2

    prompt = jax.ShapeDtypeStruct((1, 256, WIDTH), jnp.bfloat16)
    token = jax.ShapeDtypeStruct((batch, WIDTH), jnp.bfloat16)
    return (PARAMS, cache(1), prompt), (PARAMS, cache(batch), token, POSITION)


@pytest.fixture(scope="module")
def found():
    names = ["inf2.48xlarge", "trn2.48xlarge"]
    return estimate_serving(
        prefill,
        decode,
        instance=names,
        policy="bf16",
        utilization=0.5,
        watts={"inf2.48xlarge": 1_500.0, "trn2.48xlarge": 9_000.0},
        **TRAFFIC,
    )(*arguments())


def test_a_mixture_is_advised_only_where_no_launch_hides_what_it_saves(monkeypatch):
    """The launch of the prefill is not hidden, and that of the short decode takes
    longer than the decode."""
    monkeypatch.setattr(instance_costs, "fastest_mixture", lambda *_: (None, 1.0))
    wide = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)

    def prefill(w, cache, x):
        return jnp.tanh(x @ w) @ w, cache + x.sum()

    def decode(w, cache, x):
        return prefill(w, cache, x)

    def priced(rows):
        shapes = [jax.ShapeDtypeStruct((n, WIDTH), jnp.float32) for n in (128, rows)]
        arguments = [(wide, x, x) for x in shapes]
        options = {"instance": "trn2.48xlarge", "policy": ["bf16", "fp8"]}
        found = estimate_serving(prefill, decode, **options, **TRAFFIC)(*arguments)
        return [note for note in found.notes if " with fp8 and " in note]

    first, then = priced(64)
    assert first.endswith("each for some of the modules, is no faster")
    assert then.endswith("so a mixture of both would save nothing")
    _, then = priced(32_768)
    assert then.endswith("each for some of the modules, is no faster")


def test_latencies_are_those_of_the_profiles(found):
    cost = found.costs[1]
    target = resolve_target("trn2.48xlarge")
    before, after = arguments()
    first = profile(prefill, target="trn2.48xlarge", policy="bf16")(*before)
    then = profile(decode, target="trn2.48xlarge", policy="bf16")(*after)
    launch = launch_seconds(Core.of(target), target, 1)
    assert cost.time_to_first_token_seconds == first.total_seconds + launch
    queued = queued_launch_seconds(target, 1, then.total_seconds)
    assert cost.inter_token_seconds == then.total_seconds + queued
    assert 0 < queued < launch
    assert cost.loaded_inter_token_seconds > cost.inter_token_seconds
    assert (cost.copies, cost.devices) == (64, 64)


def test_memory_is_weights_and_cache_once(found):
    weights = 2 * 4 * WIDTH * WIDTH
    cache = 2 * 2 * BATCH * LENGTH * WIDTH
    for cost in found.costs:
        assert cost.weights_bytes == weights
        # The token goes in and comes out with one type too.
        assert cost.kv_cache_bytes == cache + 2 * BATCH * WIDTH
        assert weights + cache <= cost.hbm_bytes < weights + 2 * cache
        assert cost.fits
        assert cost.max_batch is not None
        assert cost.max_batch > BATCH


def test_money(found):
    inf2, trn2 = found.costs
    assert inf2.price.usd_per_hour == 12.98127
    per_request = trn2.price.usd_per_hour / 3600 / trn2.requests_per_second / 0.5
    assert trn2.dollars_per_million_tokens == pytest.approx(
        per_request / (256 + 65) * 1e6
    )
    cheapest = min(found.costs, key=lambda cost: cost.dollars_per_million_tokens)
    assert found.cheapest is cheapest
    assert found.notes == ()


def test_energy_is_that_of_the_rented_time(found):
    for cost, watts in zip(found.costs, (1_500.0, 9_000.0), strict=True):
        hours = cost.dollars_per_million_tokens / cost.price.usd_per_hour
        assert cost.kwh_per_million_tokens == pytest.approx(watts / 1000 * hours)


def test_without_watts_there_is_no_energy():
    priced = estimate_serving(prefill, decode, instance="inf2.xlarge", **TRAFFIC)
    found = priced(*arguments())
    assert found.costs[0].kwh_per_million_tokens is None
    assert "kWh" not in str(found)


def test_the_policy_says_how_many_cores_a_machine_has():
    policy = nj.Policy(lnc=1)
    options = dict(instance="trn2.48xlarge", policy=policy, **TRAFFIC)
    own = estimate_serving(prefill, decode, **options)(*arguments())
    other = estimate_serving(prefill, decode, lnc=2, **options)(*arguments())
    assert (own.costs[0].devices, other.costs[0].devices) == (128, 64)


def test_what_is_shown(found):
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    title = "prompts of 256 tokens, answers of 65, batch 4, 50% utilized"
    for part in (title, "TTFT", "KV", "kWh/Mtok"):
        assert part in text
    assert json.loads(found.to_json())["rows"] == found.records
    assert "<table" in found._repr_html_()


@pytest.mark.slow
def test_a_cache_that_does_not_fit():
    large = 16_384
    priced = estimate_serving(
        prefill, decode, instance="inf2.xlarge", **{**TRAFFIC, "batch": large}
    )(*arguments(batch=large))
    cost = priced.costs[0]
    assert not cost.fits
    assert cost.max_batch is not None
    assert 0 < cost.max_batch < large
    assert any("of HBM; a device of inf2 has" in note for note in priced.notes)
    with pytest.raises(InvalidProgramError, match="HBM"):
        priced.check_memory()


def test_traffic_is_checked_before_the_work():
    with pytest.raises(InvalidProgramError, match="watts of 0"):
        estimate_serving(prefill, decode, watts=0, **TRAFFIC)
    with pytest.raises(InvalidProgramError, match="output_tokens of 1"):
        estimate_serving(prefill, decode, **{**TRAFFIC, "output_tokens": 1})
    with pytest.raises(InvalidProgramError, match="no list price of trn2 "):
        estimate_serving(prefill, decode, instance="trn2", **TRAFFIC)
