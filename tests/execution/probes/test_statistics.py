"""Counters of one tensor against plain NumPy, and what `Statistics` says of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.probes import rounding_counters
from neuronjax.execution.probes.accumulator import as_arrays, merged, total
from neuronjax.execution.probes.collect import Collect, Probe
from neuronjax.execution.probes.rounding_counters import (
    COUNTERS,
    CounterLayout,
    count_rounding,
    empty_counters,
)
from neuronjax.execution.probes.statistics import Statistics
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.microscaling import quantize_mx
from neuronjax.numerics.rounding import cast

SITE = Probe(
    kind="cast",
    op="tensor_copy",
    scope="jit(step)/transpose(jvp())/dot_general",
    source="/home/user/model.py:7",
    format="float8_e5m2",
    shape=(8, 64),
)


def probe(**fields: object) -> Probe:
    return dataclasses.replace(SITE, **fields)  # type: ignore[arg-type]


def numbers(size: int, low: int = -30, high: int = 20, seed: int = 0) -> np.ndarray:
    """float32 over many binades, with zeros and what is not finite."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1, 1], size) * np.exp2(rng.uniform(low, high, size))
    x[::7] = 0
    x[3::31] = np.inf
    x[4::37] = np.nan
    return x.astype(np.float32)


def counts(row: rounding_counters.Counters) -> dict[str, int]:
    words = np.asarray(row.counts).astype(object)
    return dict(zip(COUNTERS, words[:, 0] + (words[:, 1] << 32), strict=True))


def expected(x: np.ndarray, y: np.ndarray, fmt: str) -> dict[str, Any]:
    """The definitions of `Statistics`, in float64."""
    info = ml_dtypes.finfo(fmt)
    x, y = x.astype(np.float64), y.astype(np.float64)
    number, largest = np.isfinite(x), float(info.max)
    tiny = float(info.smallest_normal)
    error = np.abs(x - y) / np.exp2(np.floor(np.log2(np.abs(x))))
    error = np.where(number & ~np.isfinite(y), 1, np.minimum(error, 1))
    return {
        "elements": x.size,
        "nonzero": np.sum(x != 0),
        "underflow": np.sum((x != 0) & (y == 0)),
        "subnormal": np.sum((y != 0) & (np.abs(y) < tiny)),
        "overflow": np.sum(number & ~np.isfinite(y)),
        "saturated": np.sum((np.abs(x) > largest) & (np.abs(y) == largest)),
        "nan_in": np.sum(np.isnan(x)),
        "nan": np.sum(np.isnan(y)),
        "inf": np.sum(np.isinf(y)),
        "error_units": np.sum(error, where=number & (x != 0))
        * rounding_counters.ERROR_UNIT,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fmt", "overflow", "size"),
    [
        ("float8_e5m2", "ieee", 1000),
        pytest.param("float8_e4m3", "saturate", 512, marks=pytest.mark.slow),
        pytest.param("float8_e4m3fn", "ieee", 77, marks=pytest.mark.slow),
        pytest.param("bfloat16", "ieee", 256, marks=pytest.mark.slow),
    ],
)
@np.errstate(all="ignore")
def test_a_cast_is_counted_as_defined(fmt, overflow, size):
    x = numbers(size)
    y = cast(jnp.asarray(x), get_format(fmt), overflow=overflow)
    how = CounterLayout.of(probe(format=fmt), Collect())
    found, wanted = counts(count_rounding(how, jnp.asarray(x), y)), {}
    wanted = expected(x, np.asarray(y), fmt)
    units = wanted.pop("error_units")
    assert {name: found[name] for name in wanted} == wanted
    assert found["error_units"] == pytest.approx(units, rel=2e-2, abs=size / 2)
    row = count_rounding(how, jnp.asarray(x), y)
    amax = np.asarray(row.amax).view(np.float32)
    assert amax == np.abs(x[np.isfinite(x)]).max()


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "bits"), [("bfloat16", 8), ("float8_e5m2", 3)])
def test_effective_bits_are_those_of_the_significand(fmt, bits):
    x = jnp.asarray(np.random.default_rng(1).uniform(1, 2, (64, 64)), jnp.float32)
    found = statistics(probe(format=fmt), x, cast(x, get_format(fmt)))
    assert found.records[0]["effective_bits"] == pytest.approx(bits, abs=0.03)


@pytest.mark.slow
def test_a_tensor_that_is_flushed_has_no_effective_bits():
    x = jnp.full((4, 128), 1e-9, jnp.float32)
    (record,) = statistics(probe(), x, cast(x, get_format("float8_e5m2"))).records
    assert (record["underflow"], record["effective_bits"]) == (512, 0)


@pytest.mark.slow
def test_mx_blocks():
    """Blocks along the first axis, the last of them not full."""
    x = np.random.default_rng(2).normal(size=(80, 6)).astype(np.float32)
    x[0, :] = 1e30  # its neighbours are flushed
    x[32, 1] = np.nan  # spoils a block
    q = quantize_mx(jnp.asarray(x), "mxfp8_e4m3", axis=0, scale_rule="ocp_floor")
    how = CounterLayout.of(
        probe(kind="mx", format="mxfp8_e4m3", blocked=0), Collect(histogram=True)
    )
    row = count_rounding(how, jnp.asarray(x), q.elements, (), q.scales)
    found, codes = counts(row), np.asarray(q.scales).view(np.uint8)
    assert (found["elements"], found["blocks"]) == (480, 18)
    assert found["underflow"] == 6 * 31
    assert found["blocks_underflow"] == 6
    assert (found["nan"], found["nan_in"], found["overflow"]) == (32, 1, 31)
    assert found["blocks_nan"] == 1
    assert found["saturated"] == int(np.sum(_saturated(x, q)))
    wanted = np.bincount(codes.reshape(-1), minlength=256)
    np.testing.assert_array_equal(np.asarray(row.scales)[:, 0], wanted)


def _saturated(x: np.ndarray, q: nj.MXArray) -> np.ndarray:
    value = np.abs(np.asarray(q.dequantize()).astype(np.float64))
    elements = np.abs(np.asarray(q.elements).astype(np.float64))
    return (elements == 448) & (np.abs(x) > value)


@pytest.mark.slow
@pytest.mark.parametrize("bins", [16, 64])
def test_exponents(bins):
    x = numbers(999, -40, 30)
    collect = Collect(histogram=True, bins=bins)
    y = cast(jnp.asarray(x), get_format("float8_e5m2"))
    (record,) = statistics(probe(), jnp.asarray(x), y, collect).records
    low, binades = rounding_counters.exponent_bins(get_format("float8_e5m2"), bins)
    finite = np.abs(x[np.isfinite(x) & (x != 0)]).astype(np.float64)
    bin = np.clip((np.floor(np.log2(finite)) - low) // binades + 1, 0, bins - 1)
    starts, wanted = np.unique(low + binades * (bin - 1), return_counts=True)
    assert record["exponents"] == dict(zip(starts, wanted, strict=True))


@pytest.mark.slow
def test_updates_that_change_nothing():
    x = jnp.asarray([1.0, 1.0, 0.0, 2.0], jnp.float32)
    u = jnp.asarray([1e-9, 0.5, 1e-9, 0.0], jnp.float32)
    one = CounterLayout.of(probe(compared=False, updates=(0,)), Collect())
    found = counts(count_rounding(one, x + u, x + u, (x, u)))
    assert (found["updates"], found["stagnant"]) == (3, 1)
    both = dataclasses.replace(one, updates=(0, 1))
    found = counts(count_rounding(both, x + u, x + u, (u, x)))
    assert (found["updates"], found["stagnant"]) == (4, 1)


@pytest.mark.slow
def test_every_four_counts_a_quarter_of_the_rows():
    x = jnp.asarray(numbers(128 * 10))
    how = CounterLayout.of(probe(), Collect(every=4))
    part = counts(count_rounding(how, x, x))
    kept = jnp.concatenate([x[:128], x[512:640], x[1024:1152]])
    assert part == counts(
        count_rounding(CounterLayout.of(probe(), Collect()), kept, kept)
    )


@pytest.mark.slow
def test_counts_carry_into_the_second_word():
    big = empty_counters(probe(), Collect())
    assert big.counts is not None
    big = big._replace(counts=big.counts.at[0].set(jnp.uint32([0xFFFF_FFFF, 1])))
    assert counts(merged(big, big))["elements"] == 2 * 0x1_FFFF_FFFF
    stacked = jax.tree.map(lambda x: jnp.stack([x] * 5), big)
    assert counts(total(stacked))["elements"] == 5 * 0x1_FFFF_FFFF


# ---- What is shown.


def statistics(
    of: Probe, before: jax.Array, after: jax.Array, collect: Collect = Collect()
) -> Statistics:
    row = count_rounding(CounterLayout.of(of, collect), before, after)
    return Statistics(
        arrays=as_arrays([row]), sites=(of,), collect=collect, setting="trn2"
    )


def flushed() -> Statistics:
    x = jnp.asarray(numbers(1000))
    return statistics(probe(), x, cast(x, get_format("float8_e5m2")))


@pytest.mark.slow
def test_a_table_of_80_columns():
    found = flushed()
    text = found.table()
    assert all(part in text for part in ("model.py:7", "(top)", "%"))
    assert str(found) == text
    assert max(map(len, text.splitlines())) <= 80
    assert "<table" in found._repr_html_()


def test_metrics_are_plain_floats():
    found = flushed()
    metrics = found.as_metrics()
    (record,) = found.records
    assert all(type(value) is float for value in metrics.values())
    share = record["underflow"] / record["nonzero"]
    assert metrics["cast/underflow"] == pytest.approx(share)
    bits = metrics["cast/effective_bits"]
    assert bits == pytest.approx(record["effective_bits"])
    by_site = found.as_metrics(by="site")
    assert by_site[f"{found.sites[0].key}/amax"] == record["amax"]
    with pytest.raises(InvalidProgramError, match="by="):
        found.as_metrics(by="op")


@pytest.mark.slow
def test_metrics_inside_a_trace():
    found = flushed()
    traced = jax.jit(lambda s: s.merge(s).as_metrics())(found)
    for name, value in found.as_metrics().items():
        assert float(traced[name]) == pytest.approx(value, rel=1e-5)


def test_only_statistics_of_one_program_are_merged():
    other = dataclasses.replace(flushed(), sites=())
    with pytest.raises(InvalidProgramError, match="two programs"):
        flushed().merge(other)


@pytest.mark.parametrize(
    "fields",
    [{"kinds": ("casts",)}, {"bins": 6}, {"every": 0}, {"op": "("}, {"kinds": ()}],
)
def test_a_wrong_selection_is_refused(fields):
    with pytest.raises(InvalidProgramError):
        Collect(**fields)
