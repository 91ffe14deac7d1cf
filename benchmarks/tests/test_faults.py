"""How finds of faults are counted; `compare` is asked about one pair of programs."""

from __future__ import annotations

import io

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from benchmarks import results_file
from benchmarks.faults import __main__ as command, seen
from benchmarks.faults.case import KINDS, Fault
from benchmarks.faults.counted import kept_tables
from benchmarks.faults.found import Found, found


def faulty(x):
    y = x.astype(jnp.float16) * 1e3  # fault
    return y.sum().astype(jnp.float32)


def healthy(x):
    return (x * 1e3).sum()


FAULT = Fault(
    name="products-in-half",
    kinds=("overflow",),
    faulty=faulty,
    healthy=healthy,
    arguments=lambda: (np.array([1, 99], np.float32),),
    policy="fp32",
    source="a test",
)


def case(kind: str, rank: int, named: bool, alarms: int = 0) -> Found:
    fault = Fault(**{**vars(FAULT), "kinds": (kind,)})
    return Found(fault, rank, named, alarms, (), ())


def test_a_fault_is_found_on_its_line_and_its_twin_is_left_alone():
    result = found(FAULT, "float64")
    assert (result.rank, result.kind, result.alarms) == (1, True, 0)


def test_figures_are_by_kind_and_of_all():
    cases = [
        case("overflow", 1, True),
        case("overflow", 3, True, alarms=2),
        case("integer", 0, False),
    ]
    rows = command.by_kind(cases)
    assert list(rows) == ["integer", "overflow", "all"]
    assert rows["overflow"] == {
        **{"faults": 2, "first": 1, "top": 2, "missed": 0, "named": 2, "alarms": 1}
    }
    assert rows["all"]["missed"] == 1
    kept = command.entries("seen", "float64", "abc", rows)
    assert kept[0]["kind"] == "integer"
    assert {entry["half"] for entry in kept} == {"seen"}


def test_what_was_not_counted_again_stays_with_its_commit():
    rows = command.by_kind([case("overflow", 1, True)])
    old = command.entries("held out", "float64", "old", rows)
    stale = command.entries("seen", "float64", "old", rows)
    bare = [{k: v for k, v in e.items() if k != "commit"} for e in old]
    before = {"entries": [*bare, *stale], "versions": {"commit": "older"}}
    new = command.entries("seen", "float64", "new", rows)
    found = command.merged(new, before)
    assert [(e["half"], e["commit"]) for e in found] == [
        *[("seen", "new")] * 2,
        *[("held out", "older")] * 2,
    ]
    assert command.merged(new, None) == list(new)


def test_the_last_count_is_printed_by_kind_with_both_references(tmp_path):
    console = Console(width=80, file=io.StringIO())
    rows = command.by_kind([case("overflow", 1, True), case("integer", 0, False)])
    entries = [
        entry
        for reference in ("float64", "float32")
        for entry in command.entries("seen", reference, "abcdef0123", rows)
    ]
    document = results_file.document(
        "faults", {"entries": entries}, quick=False, seconds=1.0, started="",
        versions={}, machine={},
    )  # fmt: skip
    results_file.write(document, tmp_path / "faults.json")
    for table in kept_tables(tmp_path):
        console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    titles = [line.rstrip() for line in lines if "against" in line]
    assert titles == [
        "numerical faults, seen, against float64, at abcdef01",
        "numerical faults, seen, against float32, at abcdef01",
    ]
    assert [line.split() for line in lines if line.startswith("  overflow")] == [
        ["overflow", "1", "1", "1", "0", "1", "0"]
    ] * 2


@pytest.mark.parametrize("fault", seen.FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_one_line_and_known_kinds(fault):
    assert fault.line[1] > 0
    assert set(fault.kinds) <= set(KINDS)
