"""`scaling`: what holds on any number of chips, and where it stops."""

from __future__ import annotations

import pytest

from neuronjax.api.scaling import CHIPS, scaling
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.timing.collectives import collective_time


@pytest.mark.slow
def test_the_same_work_on_more_chips():
    found = scaling(7e9, tokens_per_step=4e6)
    assert [point.chips for point in found.points] == list(CHIPS)
    efficiency = [point.efficiency for point in found.points]
    assert efficiency == sorted(efficiency, reverse=True)
    assert efficiency[0] > 0.99
    assert found.points[0].limit == ""
    assert "all-reduce" in found.points[4].limit
    assert found.points[-1].limit == "ring of 6250 nodes"
    assert found.points[-1].algorithm == "kangaring+ring"


@pytest.mark.slow
def test_work_that_grows_with_the_chips():
    found = scaling(7e9, tokens_per_device=8192)
    assert all(point.efficiency > 0.99 for point in found.points)
    assert len({point.compute_seconds for point in found.points}) == 1


def test_compute_by_hand():
    """6 x parameters x tokens operations at 40 % of 16 x 8 x 79 TFLOPS."""
    point = scaling(1e9, tokens_per_step=1e6, chips=(16,)).points[0]
    assert point.compute_seconds == pytest.approx(6e15 / (0.4 * 16 * 8 * 79e12))
    expected = collective_time(
        "all_reduce", 2e9, [range(64)], resolve_target("trn2.48xlarge")
    )
    assert point.communication_seconds == pytest.approx(expected.seconds)
    assert point.algorithm == expected.algorithm
    assert point.exposed_seconds == 0


def test_many_nodes_are_as_several_instances():
    point = scaling(1e9, compute_seconds=0.1, chips=(64,)).points[0]
    expected = collective_time(
        "all_reduce", 2e9, [range(256)], resolve_target("trn2.48xlarge:4")
    )
    assert point.communication_seconds == pytest.approx(expected.seconds)


def test_the_parts_add_up():
    found = scaling(
        7e10,
        tokens_per_step=4e6,
        tensor=16,
        pipeline=4,
        microbatches=16,
        layers=80,
        hidden=8192,
        chips=(16, 64, 4096),
        overlap=0.5,
    )
    for p in found.points:
        parts = p.compute_seconds + p.exposed_seconds + p.bubble_seconds
        assert p.step_seconds == pytest.approx(parts + p.barrier_seconds)
        assert p.exposed_seconds <= p.communication_seconds
        assert p.efficiency == pytest.approx(p.compute_seconds / p.step_seconds)
        assert p.devices == p.data * 16 * 4
    assert found.records[0]["chips"] == 16


def test_one_copy_reduces_nothing():
    point = scaling(
        1e9, tokens_per_step=1e5, tensor=64, layers=10, hidden=4096, chips=(16,)
    ).points[0]
    assert point.algorithm == ""
    assert point.limit == "tensor all-reduce"


def test_without_overlap_all_is_exposed():
    point = scaling(1e9, tokens_per_step=1e6, chips=(16,), overlap=0.0).points[0]
    assert point.exposed_seconds == point.communication_seconds


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        pytest.param(
            "trn2-ultraserver", {}, (*CHIPS[:-1], 99_968), marks=pytest.mark.slow
        ),
        ("trn2.48xlarge", {"pipeline": 4, "hidden": 64}, CHIPS[:-1]),
        pytest.param(
            "trn3-ultraserver-gen2",
            {},
            (16, 144, 1008, 4032, 16_272, 65_520, 99_936),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_chips_are_whole_targets(target, options, expected):
    found = scaling(1e9, tokens_per_step=1e6, target=target, **options)
    assert tuple(point.chips for point in found.points) == expected


def test_too_little_work():
    point = scaling(1e6, tokens_per_step=1e4, chips=(16,)).points[0]
    assert point.limit == "too little work per chip"


@pytest.mark.slow
def test_it_prints_in_80_columns():
    found = scaling(
        4e11,
        tokens_per_step=16e6,
        tensor=64,
        layers=80,
        hidden=16384,
        target="trn2-ultraserver",
        chips=(64, 4096, 65536),
    )
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 10
    assert "modelled time" in lines[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither or both of tokens_per_step"),
        ({"tokens_per_step": 1, "tokens_per_device": 1}, "neither or both of"),
        ({"compute_seconds": 1.0, "target": "trn2"}, "a bare chip"),
        ({"compute_seconds": 1.0, "target": "trn2.48xlarge:2"}, "several instances"),
        ({"compute_seconds": 1.0, "tensor": 0}, "degree below 1"),
        ({"compute_seconds": 1.0, "overlap": 2}, "overlap"),
        ({"tokens_per_step": 1, "tensor": 4}, "without `layers`"),
        ({"tokens_per_step": 1, "pipeline": 4}, "without `hidden`"),
        ({"compute_seconds": 1.0, "chips": (17,)}, "68 devices"),
        ({"compute_seconds": 1.0, "utilization": 0}, "no work"),
        ({"compute_seconds": 1.0, "gradient_dtype": "bf17"}, "no dtype"),
    ],
)
def test_errors(options, message):
    with pytest.raises(InvalidProgramError, match=message):
        scaling(1e9, **options)
