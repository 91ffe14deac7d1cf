"""The count of faults that are found; `compare` runs on one pair of programs."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from benchmarks import results_file
from benchmarks.faults import __main__ as command, data, seen
from benchmarks.faults.case import KINDS, Fault, fault, inputs, source
from benchmarks.faults.counted import kept_tables
from benchmarks.faults.found import Found, found
from benchmarks.faults.targets import missed


@fault("overflow", policy="fp32")
@source("a test")
@inputs("f32 1 99")
def products_in_half(x):
    """Return the sum of the products; one of its two formats is too narrow."""

    def added(y):  # -
        return y.sum()

    # + def added(y):
    # +     return jnp.sum(y)

    y = x.astype(jnp.float16) * 1e3  # fault
    # + y = x * 1e3
    total = added(y).astype(  # -
        jnp.float32
    )
    # + total = added(y)
    return total


FAULT = products_in_half


def case(kind: str, rank: int, named: bool, alarms: int = 0) -> Found:
    fault = Fault(**{**vars(FAULT), "kinds": (kind,)})
    return Found(fault, rank, named, alarms, (), ())


def test_a_fault_is_found_on_its_line_and_its_twin_is_left_alone():
    result = found(FAULT, "float64")
    assert (result.rank, result.kind, result.alarms) == (1, True, 0)


def test_a_program_is_its_own_twin_but_for_the_marked_lines():
    (x,) = FAULT.arguments()
    np.testing.assert_array_equal(FAULT.healthy(x), np.float32(1e5))
    assert np.isinf(FAULT.faulty(x))
    assert FAULT.name == "products-in-half"
    text = str(jax.make_jaxpr(FAULT.healthy)(x))
    assert text == str(jax.make_jaxpr(lambda x: jnp.sum(x * 1e3))(x))
    first = FAULT.faulty.__code__.co_firstlineno
    assert FAULT.healthy.__code__.co_firstlineno == first + 3  # after the decorators


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("40x16 @7", (40, 16), np.float32),
        ("8 *0.5 +3 @7", (8,), np.float32),
        ("4x6 w*2 @7", (4, 6), np.float32),
        ("9 -1..2 @7", (9,), np.float32),
        ("9 int 3..5 @7", (9,), np.int32),
        ("f16 1 2 3", (3,), np.float16),
        ("i32 7", (), np.int32),
        ("2x3 =1.5", (2, 3), np.float32),
        ("9 even 0..4", (9,), np.float32),
        ("9 int 3..5 @7 as f32", (9,), np.float32),
        ("8 @7 as f16 [2]=5", (8,), np.float16),
    ],
)
def test_texts_make_arrays(text, shape, dtype):
    array = data.array(text)
    assert (np.shape(array), array.dtype) == (shape, dtype)


def test_texts_change_elements_from_left_to_right():
    found = data.array("2x3 =1 [0,1:]*=4 [...]+=1 [[0,1],0]=-7")
    np.testing.assert_array_equal(found, [[-7, 5, 5], [-7, 2, 2]])
    one, two = (data.array(f"mlp 6x3x2 @1{edit}") for edit in ("", " [1][w]*=2"))
    np.testing.assert_array_equal(two[1].pop("w"), 2 * one[1].pop("w"))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_several_names_of_an_entry_have_consecutive_seeds():
    short, long = data.made(["a b: 8 @7 [0]=1", "a: 8 @7 [0]=1, b: 8 @8 [0]=1"])
    jax.tree.map(np.testing.assert_array_equal, short, long)


def test_entries_without_a_seed_have_the_next_one():
    short, long = data.made(["a: 8 @7, n: f32 1, b: 4", "a: 8 @7, n: f32 1, b: 4 @8"])
    jax.tree.map(np.testing.assert_array_equal, short, long)
    assert set(data.made("m: mlp 6x3 @1")["m"][0]) == {"w", "b"}
    with pytest.raises(ValueError, match="'8 by 4' is not of the form"):
        data.array("8 by 4")


def test_a_missed_target_is_said_of_whole_sets_against_float64():
    rows = command.by_kind([case("overflow", 0, False), case("integer", 1, True, 1)])
    entries = command.entries("seen", "float64", "abc", rows)
    said = list(missed(entries))
    assert said[0] == "seen: first is 50.0%, and should be at least 90.0%"
    assert said[-1] == "seen: alarms is 50.0%, and should be at most 2.0%"
    assert not list(missed(command.entries("seen", "float32", "abc", rows)))


def test_the_record_says_what_was_named_and_of_held_out_faults_only_how_well():
    told = Found(FAULT, 2, True, 1, ("a.py:3 overflow",), ("a.py:9 coarse",))
    words = "rank 2, right kind, 1 alarms"
    assert command.named("seen", "float64", "abc", [told])["named"] == {
        "products-in-half": f"{words}: a.py:3 overflow; healthy: a.py:9 coarse"
    }
    held_out = command.named("held out", "float64", "abc", [told])
    assert held_out["named"] == {"products-in-half": words}


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


def test_the_command_keeps_what_was_named_and_fails_on_a_missed_target(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(command, "HALVES", {"seen": (FAULT,)})
    monkeypatch.setattr(command, "found", lambda *_: case("overflow", 0, False))
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    asked = ["--half", "seen", "--reference", "float64"]
    with pytest.raises(SystemExit, match=r"seen: first is 0\.0%"):
        command.main([*asked, "--keep"])
    [kept] = results_file.read(tmp_path / "faults.json")["faults"]
    assert kept["named"] == {
        "products-in-half": "rank -, other kind, 0 alarms: nothing"
    }
    monkeypatch.setattr(command, "found", lambda *_: case("overflow", 1, True))
    command.main(asked)
    with pytest.raises(SystemExit):  # single faults are no figures of a set
        command.main([*asked, "--keep", "--name", "products-in-half"])
