"""Traces, read back with Perfetto's own protobufs."""

from __future__ import annotations

from collections import defaultdict

import pytest

from neuronjax.hardware import resolve_target
from neuronjax.report.perfetto import write_perfetto
from neuronjax.report.profile_summary import metrics
from neuronjax.timing.work import Core
from tests.report.timelines import EXAMPLE, MICRO, event, scheduled, transfer

trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

COUNTERS = {"SBUF": [(0.0, 10.0), (2 * MICRO, 30.0)]}


def trace_of(timeline, path, counters=None):
    write_perfetto(timeline, path, process="trn2, a core", counters=counters)
    trace = trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    return trace


@pytest.fixture
def trace(tmp_path):
    return trace_of(EXAMPLE, tmp_path / "step.pftrace", COUNTERS)


def slices(trace):
    """(track's name, begin's event, duration in ns) of every slice."""
    names = {p.track_descriptor.uuid: p.track_descriptor.name for p in trace.packet}
    begun, found = defaultdict(list), []
    for packet in trace.packet:
        each = packet.track_event
        if each.type == each.TYPE_SLICE_BEGIN:
            begun[each.track_uuid].append((packet.timestamp, each))
        elif each.type == each.TYPE_SLICE_END:
            start, begin = begun[each.track_uuid].pop()
            duration = packet.timestamp - start
            found.append((names[each.track_uuid], begin, duration))
    assert not any(begun.values())
    return found


def arguments(begin):
    return {a.name: getattr(a, a.WhichOneof("value")) for a in begin.debug_annotations}


def test_one_process_with_a_track_for_each_queue(trace):
    tracks = [
        p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    ]
    (process,) = [t for t in tracks if t.HasField("process")]
    assert process.process.process_name == "trn2, a core"
    others = [t for t in tracks if t is not process and t.uuid != process.uuid]
    assert {t.parent_uuid for t in others} == {process.uuid}
    assert [t.name for t in others] == ["DMA", "TensorE", "ScalarE", "loops", "SBUF"]


@pytest.mark.parametrize(
    ("track", "figure"),
    [
        ("TensorE", "tensor_engine_active_time"),
        ("ScalarE", "scalar_engine_active_time"),
        ("DMA", "dma_active_time"),
    ],
)
def test_slices_add_up_to_the_summary(trace, track, figure):
    found = [s for s in slices(trace) if s[0] == track]
    spent = sum(ns * arguments(begin).get("count", 1) for _, begin, ns in found)
    figures = metrics(EXAMPLE, Core.of(resolve_target("trn2")))
    assert spent * 1e-9 == pytest.approx(figures[figure], abs=1e-9 * len(found))


def test_what_a_slice_says(trace):
    begin = next(begin for _, begin, _ in slices(trace) if begin.name == "nc_matmul")
    assert arguments(begin)["opcode"] == "weight"
    assert arguments(begin)["hbm_read_bytes"] == 4000
    (matmul,) = [
        arguments(begin)
        for track, begin, _ in slices(trace)
        if track == "TensorE" and arguments(begin)["count"] == 4
    ]
    assert matmul["source_location"] == "train.py:3"
    assert (matmul["module"], matmul["phase"]) == ("mlp", "backward")
    assert matmul["flops"] == 500
    assert "hbm_read_bytes" not in matmul


def test_a_loop_is_a_slice(trace):
    (loop,) = [begin for track, begin, _ in slices(trace) if track == "loops"]
    assert (loop.name, arguments(loop)["trips"]) == ("loop of 4", 4)


def test_an_event_in_pieces(tmp_path):
    source = transfer("input", 100)
    whole = event("dma", 0, 10, source)
    pieces = whole._replace(pieces=4, queue_seconds=2 * MICRO)
    found = slices(trace_of(scheduled([pieces]), tmp_path / "t.pftrace"))
    assert [ns for _, _, ns in found] == [500] * 4
    assert [arguments(begin).get("hbm_read_bytes") for _, begin, _ in found] == [
        100, None, None, None
    ]  # fmt: skip
    assert arguments(found[1][1])["part"] == "2 of 4"


def test_counters(trace):
    values = [
        (packet.timestamp, packet.track_event.counter_value)
        for packet in trace.packet
        if packet.track_event.type == packet.track_event.TYPE_COUNTER
    ]
    assert values == [(0, 10), (2000, 30)]


def test_slices_of_a_track_never_overlap(tmp_path):
    """Perfetto nests what overlaps: side by side they need tracks of one name."""
    both = (transfer("input", 1), transfer("weight", 2))
    events = (event("dma", 0, 4, both[0]), event("dma", 2, 6, both[1]))
    trace = trace_of(scheduled(events), tmp_path / "t.pftrace")
    found = slices(trace)
    assert [(track, ns) for track, _, ns in found] == [("DMA", 4000), ("DMA", 4000)]
    assert len({begin.track_uuid for _, begin, _ in found}) == 2
