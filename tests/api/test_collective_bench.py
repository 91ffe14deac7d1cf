"""`collective_bench`: nccom-test's table from the time model."""

from __future__ import annotations

import json

import pytest

from neuronjax.api.collective_bench import collective_bench
from neuronjax.errors import InvalidProgramError
from neuronjax.timing.collectives import OPS

KIB, MIB, GIB = 2**10, 2**20, 2**30


def test_a_table_of_sizes():
    found = collective_bench("all_reduce", "trn2.48xlarge")
    sizes = [record["size_bytes"] for record in found.records]
    assert sizes == [2**power for power in range(10, 31)]
    assert found.ranks == tuple(range(64))
    assert found.barrier_seconds > 1e-3
    for record in found.records:
        seconds = record["time_us"] / 1e6
        assert record["count"] == record["size_bytes"] / 2
        algbw = record["size_bytes"] / seconds / 1e9
        assert record["algbw_gb_per_second"] == pytest.approx(algbw)
        assert record["busbw_gb_per_second"] == pytest.approx(algbw * 2 * 63 / 64)
        parts = record["latency_us"] + record["transfer_us"]
        assert record["time_us"] == pytest.approx(parts)


@pytest.mark.parametrize("target", ["trn1.32xlarge", "trn2.48xlarge:4", "trn2"])
@pytest.mark.parametrize("op", OPS)
def test_it_prints_in_80_columns(op, target):
    lines = str(collective_bench(op, target, sizes="1K:16G:x64")).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[0] == "size(B)"
    assert lines[2].split()[-2:] == ["algbw", "busbw"]


def test_the_longest_name_fits():
    found = collective_bench(
        "all_reduce",
        "trn2.48xlarge:2",
        sizes="64G",
        algorithm="kangaring+single_step_mesh",
    )
    assert max(map(len, str(found).splitlines())) <= 80


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("1K:4K", [KIB, 2 * KIB, 4 * KIB]),
        ("1K:1M:x32", [KIB, 32 * KIB, MIB]),
        ("3M", [3 * MIB]),
        (["1G", 5], [GIB, 5]),
    ],
)
def test_sizes(sizes, expected):
    found = collective_bench("all_gather", ranks=8, sizes=sizes)
    assert [record["size_bytes"] for record in found.records] == expected


@pytest.mark.parametrize("sizes", ["1X", "4K:1K", "1K:4K:x1", "1K:4K:x2:3", "", ["-1"]])
def test_sizes_that_are_none(sizes):
    with pytest.raises(InvalidProgramError, match="is no size"):
        collective_bench("all_gather", sizes=sizes)


def test_dtypes():
    short, long = (
        collective_bench("all_gather", ranks=4, sizes="4K", dtype=dtype)
        for dtype in ("fp32", "float32")
    )
    assert short == long
    assert short.records[0]["count"] == 1024
    assert collective_bench("all_gather", sizes="4K", dtype="fp8e4").records[0][
        "count"
    ] == (4096)
    with pytest.raises(InvalidProgramError, match="no dtype is called 'fp12'"):
        collective_bench("all_gather", dtype="fp12")


def test_ranks():
    some = collective_bench("all_gather", ranks=(0, 4, 8), sizes="1M")
    assert some.ranks == (0, 4, 8)
    assert some.records[0]["algorithm"] == "ring"
    for ranks in (65, 0, (), (0, 0), (-1, 2), (64,)):
        with pytest.raises(InvalidProgramError, match="has 64 devices"):
            collective_bench("all_gather", ranks=ranks)
    assert len(collective_bench("all_gather", lnc=1, sizes="1M").ranks) == 128


def test_algorithms_differ():
    times = {
        name: collective_bench("all_reduce", sizes="1K", algorithm=name)
        for name in ("ring", "kangaring", "rdh", "mesh", "single_step_mesh")
    }
    found = [times[name].records[0]["time_us"] for name in times]
    assert found == sorted(found, reverse=True)


def test_more_instances_take_longer():
    one, four = (
        collective_bench("all_reduce", target, sizes="1G").records[0]
        for target in ("trn2.48xlarge", "trn2.48xlarge:4")
    )
    assert four["time_us"] > one["time_us"]
    assert four["algorithm"] == "kangaring+rdh"


def test_json():
    data = json.loads(collective_bench("all_reduce", sizes="1M").to_json())
    assert data["op"] == "all_reduce"
    assert data["records"][0]["size_bytes"] == MIB


def test_an_ultracluster():
    """6,250 instances, 400,000 ranks: only the first instance is named."""
    found = collective_bench("all_reduce", "trn2.48xlarge:6250", sizes="1G")
    record = found.records[0]
    assert len(found.ranks) == 400_000
    assert record["algorithm"] == "kangaring+ring"
    assert record["steps"] == 64 + 2 * 6249
    with pytest.raises(InvalidProgramError, match="use at most 1024 ranks"):
        collective_bench("all_to_all", "trn2.48xlarge:6250")
