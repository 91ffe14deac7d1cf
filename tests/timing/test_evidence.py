"""Intervals of predicted times, from measured ones."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import neuronjax as nj
from neuronjax.timing.evidence import COVERED, ROWS, among, measured_times


def test_rows_are_well_formed():
    rows = measured_times()
    assert len({(r.name, r.chip, r.kind) for r in rows}) == len(rows) > 150
    for row in rows:
        assert row.kind in ("program", "kernel")
        assert 1e-6 < row.measured_seconds < 1
        assert 0 < row.predicted_seconds < 1
        assert row.shares
        assert all(0 < share <= 1.001 for share in row.shares.values())


@pytest.mark.parametrize("kind", ["program", "kernel"])
def test_four_of_five_lie_in_the_interval_that_the_others_give(kind):
    """Each row against the others."""
    rows = measured_times()
    inside = []
    for row in rows:
        if row.kind == kind:
            others = [r for r in rows if r is not row]
            found = among(row, others)
            assert len(found.nearest) == ROWS
            inside.append(
                found.low_seconds <= row.measured_seconds <= found.high_seconds
            )
    assert sum(inside) / len(inside) == pytest.approx(COVERED, abs=0.08)


def test_what_was_measured_is_nearest_to_itself():
    row = next(r for r in measured_times() if r.name == "silu_v3_s4")
    same = dataclasses.replace(row, name="unknown")
    assert among(same, measured_times()).nearest[0] is row


def test_a_profile_shows_it():
    x = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
    found = nj.profile(lambda x: jnp.tanh(x @ x), target="trn2", policy="bf16")(x)
    sure = found.confidence
    assert sure is not None
    assert sure.low_seconds < found.total_seconds * 1.5
    assert sure.high_seconds > found.total_seconds * 0.7
    assert sure.knows_chip
    assert "How sure" in str(found)
    assert sure.nearest[0].name[:20] in str(found)
    other = nj.profile(lambda x: jnp.tanh(x @ x), target="inf2", policy="bf16")(x)
    assert other.confidence is not None
    assert not other.confidence.knows_chip
    assert "none ran on this chip" in str(other)
    nothing = nj.profile(lambda x: x.shape[0], target="trn2")(x)
    assert nothing.total_seconds == 0 or nothing.confidence is not None
