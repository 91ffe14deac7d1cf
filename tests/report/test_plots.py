"""Pictures: what they show, not how they look."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.report.event_spans import busy_shares, spans
from neuronjax.report.plots import draw
from neuronjax.report.plots_roofline import points
from neuronjax.report.quantities import time_unit
from neuronjax.timing.work import QUEUES, Core
from tests.report.timelines import EXAMPLE, MICRO, event, scheduled, transfer

TRN2 = Core.of(resolve_target("trn2"))


def texts(axes):
    """Everything that is written in a picture, labels of axes and legends included."""
    legend = axes.get_legend()
    named = [text.get_text() for text in legend.get_texts()] if legend else []
    ticks = [label.get_text() for label in axes.get_yticklabels()]
    written = [text.get_text() for text in axes.texts]
    return [axes.get_xlabel(), axes.get_ylabel(), *ticks, *written, *named]


def figure(kind, timeline=EXAMPLE):
    return draw(kind, timeline, timeline.memory, TRN2, "step on trn2")


def test_timeline_names_queues_with_their_shares():
    (axes,) = figure("timeline").axes
    found = texts(axes)
    for text in ("TensorE  75.0 %", "ScalarE  5.0 %", "DMA  25.0 %", "time [µs]"):
        assert text in found
    assert "loop × 4" in found
    assert "nc_matmul" in found
    assert "spills to and from HBM" in found


def test_roofline_names_roofs_and_ops():
    (axes,) = figure("roofline").axes
    found = texts(axes)
    for text in (
        "BF16 157 TOP/s",
        "FP8 315 TOP/s",
        "VectorE 1× 246 GOP/s",
        "nc_matmul",
    ):
        assert text in found
    assert any(text.startswith("HBM 725") for text in found)
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_points_of_the_roofline():
    first, second, third = points(EXAMPLE)
    assert (first.is_matmul, first.operations, first.hbm_bytes) == (True, 1000, 4000)
    assert first.intensity == 0.25
    assert first.rate == pytest.approx(1000 / (3 * MICRO))
    # In a loop of four turns, each of 500 operations.
    assert second.operations == 2000
    assert second.rate == pytest.approx(2000 / (12 * MICRO))
    assert (third.is_matmul, third.operations) == (False, 1000)
    assert third.intensity == np.inf


def test_everything_at_once():
    found = figure("all")
    assert len(found.axes) == 4
    found.set_dpi(40)
    assert found._repr_png_().startswith(b"\x89PNG")


def test_another_kind_is_named():
    with pytest.raises(InvalidProgramError, match=r"'pie'.*\n.*timeline, roofline"):
        figure("pie")


def test_nothing_can_be_drawn():
    assert figure("all", scheduled(())).axes


# -- how busy a queue is at a time -----------------------------------------------------


def test_shares_are_areas():
    """Areas are busy times, those of loops included."""
    edges = np.linspace(0, EXAMPLE.total_seconds, 41)
    for queue in QUEUES:
        area = (busy_shares(EXAMPLE, queue, edges) * np.diff(edges)).sum()
        assert area == pytest.approx(EXAMPLE.busy_seconds(queue))


def test_a_loop_is_busy_all_its_time():
    edges = np.array([0, 2, 5, 11, 17, 18]) * MICRO
    shares = busy_shares(EXAMPLE, "tensor", edges)
    assert shares == pytest.approx([0, 1, 1, 1, 0])


def test_pieces_lie_between_start_and_end():
    whole = event("dma", 1, 11, transfer("input", 1))
    pieces = dataclasses.replace(whole, pieces=5, queue_seconds=2.5 * MICRO)
    found = spans(pieces)
    assert len(found) == 5
    assert found[0][0] == pytest.approx(MICRO)
    assert found[-1][1] == pytest.approx(11 * MICRO)
    assert sum(end - start for start, end in found) == pytest.approx(2.5 * MICRO)
    assert len(spans(dataclasses.replace(pieces, pieces=1000))) == 32
    assert spans(whole) == [(whole.start_seconds, whole.end_seconds)]


def test_the_axis_of_time_has_a_unit():
    assert time_unit(EXAMPLE.total_seconds) == (1e-6, "µs")
