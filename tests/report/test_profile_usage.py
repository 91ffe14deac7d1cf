"""How the time of a timeline divides among ops, lines and modules."""

from __future__ import annotations

import dataclasses

import pytest

from neuronjax.ir.program import Location
from neuronjax.report.profile_tables import UsageGroups, groups_table, parts_that_hold
from neuronjax.report.profile_usage import (
    NONE,
    Usage,
    by_instruction,
    grouped,
    module_name,
    op_name,
    phase_name,
    source_line,
    usage,
)
from neuronjax.report.tables import as_text
from tests.report.timelines import EXAMPLE, MATMULS, MICRO, scheduled


def test_usage_counts_the_trips_of_loops():
    used = usage(EXAMPLE.events)
    assert used.seconds["tensor"] == pytest.approx(15 * MICRO)
    assert (used.flops, used.counts["tensor"]) == (3000, 6)
    assert (used.hbm_read_bytes, used.hbm_write_bytes) == (5000, 500)
    assert used.bottleneck == "tensor"


def test_nothing_has_no_bottleneck():
    assert usage(()).bottleneck is None


@pytest.mark.parametrize("key", [op_name, source_line, module_name])
def test_groups_add_up(key):
    groups = grouped(EXAMPLE, key)
    whole = usage(EXAMPLE.events)
    busy = sum(used.busy_seconds for used in groups.values())
    assert busy == pytest.approx(whole.busy_seconds)
    assert sum(used.hbm_bytes for used in groups.values()) == whole.hbm_bytes


def test_the_busiest_group_is_first():
    assert list(grouped(EXAMPLE, op_name)) == ["nc_matmul", NONE, "activation.tanh"]
    assert list(grouped(EXAMPLE, source_line)) == ["train.py:3", NONE, "train.py:4"]
    modules = grouped(EXAMPLE, module_name)
    assert list(modules) == ["mlp (backward)", "mlp (forward)", NONE, "(top) (forward)"]


def test_what_takes_no_time_is_no_group():
    idle = [e._replace(queue_seconds=0.0) for e in EXAMPLE.events]
    found = grouped(scheduled(idle, EXAMPLE.instructions), phase_name)
    assert found == {}
    assert NONE in grouped(EXAMPLE, phase_name)


def test_by_instruction():
    found = by_instruction(EXAMPLE)
    assert found[0].hbm_bytes == 4000
    assert found[1].busy_seconds == pytest.approx(13 * MICRO)


def test_as_dict_has_what_is_not_zero():
    data = by_instruction(EXAMPLE)[2].as_dict()
    assert data["seconds"] == {"scalar": pytest.approx(MICRO)}
    assert "flops" not in data


def test_module_and_phase():
    location = Location(module="block/mlp", phase="backward")
    instruction = dataclasses.replace(MATMULS[0], location=location)
    assert module_name(instruction) == "block/mlp (backward)"
    assert phase_name(instruction) == "backward"
    nowhere = dataclasses.replace(MATMULS[0], location=Location())
    assert (module_name(nowhere), phase_name(nowhere)) == ("(top)", "")


# -- parts of a model ------------------------------------------------------------------

WEIGHTS = {
    f"blocks/{n}/{part} (optimizer)": Usage(seconds={"vector": MICRO})
    for n in range(4)
    for part in ("attention/wq", "attention/wk", "mlp/up", "mlp/down")
} | {NONE: Usage(seconds={"dma": MICRO}), "head": Usage(seconds={"tensor": MICRO})}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (9, None),
        (5, {"blocks/0/attention (optimizer)", NONE, "head"}),
        (3, {"blocks/3 (optimizer)", NONE, "head"}),
        (1, {"blocks (optimizer)", NONE, "head"}),
    ],
)
def test_parts_go_to_what_holds_them_until_rows_show_half(rows, names):
    found, note = parts_that_hold(WEIGHTS, rows)
    if names is None:
        assert (found, note) == (WEIGHTS, "")
        return
    assert names <= found.keys()
    assert "18 parts" in note
    assert sum(used.busy_seconds for used in found.values()) == pytest.approx(
        18 * MICRO
    )


def test_nothing_is_held_by_nothing():
    assert parts_that_hold({}, 3) == ({}, "")


def test_what_has_no_name_is_explained():
    shown = as_text(groups_table("Modules", "module", WEIGHTS, limit=99))
    assert f"{NONE}: transfers that count for no op" in shown
    unknown = {NONE: Usage(seconds={"tensor": MICRO})}
    assert "of no known phase" in as_text(groups_table("Phases", "phase", unknown))
    assert NONE not in as_text(groups_table("Ops", "op", {"head": WEIGHTS["head"]}))


def test_lines_are_shown_without_their_folders():
    lines = {f"/home/me/{n}/train.py:3": Usage(seconds={"dma": MICRO}) for n in "ab"}
    found = UsageGroups("source", {**lines, "/home/me/a/data.py:1": WEIGHTS["head"]})
    text = str(found)
    assert "/home/me" not in text
    assert " a/train.py:3 " in text
    assert " data.py:1 " in text
    assert set(lines) < set(found)  # a data frame has the whole path


def test_groups_are_columns_of_a_data_frame_and_a_table():
    found = UsageGroups("module", WEIGHTS)
    assert str(found).startswith("Busiest modules")
    assert "6 more" in str(found)
    assert "a row is the sum of the parts inside it; 18 parts in all" in as_text(
        found.table(5)
    )
    for used in found.values():  # a dict of dicts of numbers
        assert used["busy_seconds"] == pytest.approx(used.busy_seconds)
        assert all(isinstance(value, float | int) for value in used.values())
    assert found["head"]["tensor_seconds"] == MICRO
    assert repr(found["head"]) == "<neuronjax.Usage: queues busy for 1e-06 s>"
