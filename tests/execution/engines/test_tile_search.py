"""The timed search: what it picks, what it keeps, and that it never joins a trace."""

from __future__ import annotations

import json
import time

import jax
import jax.numpy as jnp
import pytest

from neuronjax.execution.engines import tile_search
from neuronjax.execution.engines.host_cache import HostCache


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> HostCache:
    monkeypatch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tile_search, "enabled", True)
    made = HostCache("tiles", str)
    monkeypatch.setattr(tile_search, "_FASTEST", made)
    return made


class Way:
    """Takes some seconds, and counts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def __call__(self) -> jax.Array:
        self.calls += 1
        time.sleep(self.seconds)
        return jnp.zeros(())


def slow_and_fast() -> dict[str, Way]:
    return {"slow": Way(0.02), "fast": Way(0.0)}


def test_the_fastest_is_taken_and_kept(cache):
    ways = slow_and_fast()
    before = tile_search.spent_seconds
    assert tile_search.fastest("problem", ways) == "fast"
    assert json.loads(cache.path.read_text())["findings"] == {"problem": "fast"}
    assert tile_search.spent_seconds > before
    calls = [way.calls for way in ways.values()]
    assert calls == [tile_search.ROUNDS + 1] * 2
    assert tile_search.fastest("problem", ways) == "fast"
    cache.forget()
    assert tile_search.fastest("problem", ways) == "fast"
    assert [way.calls for way in ways.values()] == calls


def test_a_way_that_is_gone_is_searched_again(cache):
    assert tile_search.fastest("problem", {"gone": Way(0)}) == "gone"
    assert tile_search.fastest("problem", slow_and_fast()) == "fast"


def test_without_a_search_the_first_is_taken(monkeypatch):
    monkeypatch.setattr(tile_search, "enabled", False)
    ways = slow_and_fast()
    assert tile_search.fastest("problem", ways) == "slow"
    assert not ways["slow"].calls


def test_a_search_in_a_trace_is_not_traced():
    traced = []

    def way() -> jax.Array:
        result = jnp.ones(3) + 1
        traced.append(isinstance(result, jax.core.Tracer))
        return result

    def program(x: jax.Array) -> jax.Array:
        tile_search.fastest("problem", {"only": way})
        return x + 1

    jaxpr = jax.make_jaxpr(program)(jnp.zeros(3))
    assert traced
    assert not any(traced)
    assert len(jaxpr.eqns) == 1
