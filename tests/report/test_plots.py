"""Pictures: what they show, not how they look."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb, to_rgba

import neuronjax as nj
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.report.event_spans import busy_shares, spans
from neuronjax.report.plots import draw
from neuronjax.report.plots_memory import CATEGORY_COLOURS
from neuronjax.report.plots_roofline import points
from neuronjax.report.plots_style import axis_floor
from neuronjax.report.plots_timeline import phase_runs
from neuronjax.report.quantities import time_unit
from neuronjax.timing.work import QUEUES, Core
from tests.report.timelines import (
    ACTIVATE,
    EXAMPLE,
    MICRO,
    event,
    matmul,
    scheduled,
    transfer,
)

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
    for text in ("TensorE  75.0 %", "ScalarE  5.0 %", "DMA  25.0 %"):
        assert text in found
    assert axes.get_xlabel().startswith("time [µs]")
    assert "loop × 4" in found
    assert "nc_matmul" in found
    assert {"spills to and from HBM", "other transfers"} <= {*found}


def test_a_queue_that_hardly_works_has_no_lane():
    idle = dataclasses.replace(ACTIVATE, queue="gpsimd")
    events = (
        event("tensor", 0, 9999, matmul(1000.0, tiles=2)),
        event("gpsimd", 9999, 10000, idle),
    )
    (axes,) = figure("timeline", scheduled(events)).axes
    assert not any("GpSimdE" in label.get_text() for label in axes.get_yticklabels())
    assert "without a lane: GpSimdE  <0.1 %" in axes.get_xlabel()


@pytest.mark.slow
def test_roofline_names_roofs_and_ops():
    (axes,) = figure("roofline").axes
    found = texts(axes)
    for text in (
        "BF16 157 TFLOP/s",
        "FP8 315 TFLOP/s",
        "VectorE 1× 246 Gelem/s",
        "nc_matmul",
    ):
        assert text in found
    assert any(text.startswith("HBM 725") for text in found)
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_a_picture_of_nothing_to_name_has_no_names():
    (axes,) = figure("timeline", scheduled(())).axes
    assert not axes.texts


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


@pytest.mark.slow
def test_everything_at_once():
    found = figure("all")
    assert len(found.axes) == 4


def test_another_kind_is_named():
    with pytest.raises(InvalidProgramError, match=r"'pie'.*\n.*'timeline', 'roofline'"):
        figure("pie")


@pytest.mark.slow
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
    pieces = whole._replace(pieces=5, queue_seconds=2.5 * MICRO)
    found = spans(pieces)
    assert len(found) == 5
    assert found[0][0] == pytest.approx(MICRO)
    assert found[-1][1] == pytest.approx(11 * MICRO)
    assert sum(end - start for start, end in found) == pytest.approx(2.5 * MICRO)
    assert len(spans(pieces._replace(pieces=1000))) == 32
    assert spans(whole) == [(whole.start_seconds, whole.end_seconds)]


def test_the_axis_of_time_has_a_unit():
    assert time_unit(EXAMPLE.total_seconds) == (1e-6, "µs")


# -- what reads ------------------------------------------------------------------------


def types(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@functools.cache
def two_layers():
    """The profile of a step of gradient descent."""

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["w1"])
        return jnp.mean((hidden @ params["w2"] - y) ** 2)

    def step(params, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    params = {"w1": types(256, 1024), "w2": types(1024, 256)}
    batch = types(128, 256)
    return nj.profile(step, target="trn2", policy="bf16")(params, batch, batch)


@functools.cache
def all_reduced():
    """The same over eight devices, whose gradients are summed."""
    mesh = nj.make_mesh((8,), ("data",))

    def step(w, x):
        gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - 0.1 * jax.lax.pmean(gradient, "data")

    spec = jax.sharding.PartitionSpec
    split = {"in_specs": (spec(), spec("data")), "out_specs": spec()}
    mapped = jax.shard_map(step, mesh=mesh, check_vma=False, **split)
    profiled = nj.profile(mapped, target="trn2.48xlarge", policy="bf16")
    return profiled(types(512, 512), types(1024, 512))


@functools.cache
def spilled():
    """Of more activations than SBUF holds: the DMA's lane is full of spikes."""

    def loss(params, x):
        for w in params:
            x = jax.nn.gelu(x @ w)
        return jnp.mean(x**2)

    step = jax.value_and_grad(loss)
    params = [types(2048, 2048)] * 4
    return nj.profile(step, target="trn2", policy="bf16")(params, types(8192, 2048))


EXAMPLES = {"two layers": two_layers, "all reduced": all_reduced, "spilled": spilled}


@pytest.mark.slow_except("two layers-memory", "spilled-memory")
@pytest.mark.parametrize("kind", ["timeline", "roofline", "memory", "all"])
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_texts_do_not_overlap_and_nothing_is_cut_off(example, kind):
    drawn = example().plot(kind)
    drawn.draw_without_rendering()
    page = drawn.get_window_extent()
    for axes in drawn.axes:
        boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
        for text, box in zip(axes.texts, boxes, strict=True):
            assert page.x0 <= box.x0, text
            assert box.x1 <= page.x1, text
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other)
        legend = axes.get_legend()
        if legend is not None:
            around = legend.get_window_extent()
            assert not any(around.overlaps(box) for box in boxes)
        for label in axes.get_yticklabels():
            assert page.x0 <= label.get_window_extent().x0


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_names_in_a_timeline_lie_within_what_they_name(example):
    drawn = example().plot("timeline")
    drawn.draw_without_rendering()
    (axes,) = drawn.axes
    inside = axes.get_window_extent()
    assert axes.texts
    for text in axes.texts:
        box = text.get_window_extent()
        assert inside.x0 <= box.x0, text
        assert box.x1 <= inside.x1, text
        assert text.get_fontsize() >= 7


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_what_stands_behind_a_name_is_no_gap(example):
    """Of a lane, where it is as high as the text, or higher."""
    profiled = example()
    drawn = profiled.plot("timeline")
    drawn.draw_without_rendering()
    (axes,) = drawn.axes
    timeline = profiled.timeline
    unit, _ = time_unit(timeline.total_seconds)
    edges = np.linspace(0, timeline.total_seconds, 801)  # as it is drawn
    least = 1e-3 * timeline.total_seconds
    queues = [q for q in QUEUES if timeline.busy_seconds(q) >= least]
    for text in axes.texts:
        _, y = text.get_position()
        lane = len(queues) - 1 - round(y)
        if round(y) == y or lane < 0:  # of phases, loops, and around the program
            continue
        box = text.get_window_extent().transformed(axes.transData.inverted())
        shares = busy_shares(timeline, queues[lane], edges)
        behind = (edges[:-1] >= box.x0 * unit) & (edges[1:] <= box.x1 * unit)
        assert shares[behind].min() > 0.4, text


def test_phases_follow_one_another():
    timeline = two_layers().timeline
    runs = phase_runs(timeline)
    # By when each is first busiest: the division of the loss comes last of all.
    names = list(dict.fromkeys(run.name for run in runs))
    assert names == ["forward", "backward", "optimizer"]
    assert runs[0].start == 0
    assert runs[-1].end == pytest.approx(timeline.scheduled_seconds)
    for before, after in itertools.pairwise(runs):
        assert before.end == after.start
    (axes,) = two_layers().plot("timeline").axes
    assert {"phase", "forward", "backward", "optimizer"} <= set(texts(axes))


def test_a_program_without_gradients_has_no_phases():
    profiled = nj.profile(lambda x: x @ x, target="trn2")(types(64, 64))
    assert phase_runs(profiled.timeline) == []
    (axes,) = profiled.plot("timeline").axes
    assert "phase" not in texts(axes)


def test_collectives_have_a_row():
    (axes,) = all_reduced().plot("timeline").axes
    assert any(text.startswith("Collectives") for text in texts(axes))
    assert any(text.startswith("all_reduce") for text in texts(axes))


def test_time_around_a_program_is_told():
    (axes,) = two_layers().plot("timeline").axes
    assert "start and end of the program: 40.0 µs" in texts(axes)


@pytest.mark.slow
def test_one_slow_op_does_not_stretch_the_roofline():
    """A sum of squares ends with one division of one number: a thousand times slower
    than anything else, and a hundredth of the time."""
    profiled = two_layers()
    slowest, *rest = sorted(points(profiled.timeline), key=lambda p: p.rate)
    assert slowest.rate < rest[0].rate / 100
    (axes,) = profiled.plot("roofline").axes
    bottom, _ = axes.get_ylim()
    assert slowest.rate < bottom <= rest[0].rate
    assert "below the axis" in texts(axes)


@pytest.mark.slow
def test_the_words_of_a_roofline_are_explained():
    (axes,) = two_layers().plot("roofline").axes
    found = "\n".join(texts(axes))
    for words in ("memory bound", "compute bound", "both limits meet in BF16"):
        assert words in found


@pytest.mark.parametrize(
    ("values", "weights", "floor"),
    [
        ([1e-9, 1.0, *[2.0] * 20], None, 1.0),
        ([1e-9, 1e-9, 1e-9, 1.0, *[2.0] * 20], None, 1e-9),
        ([0.1, 1.0, *[2.0] * 20], None, 0.1),
        ([1e-9, 1.0], [0.05, 0.95], 1.0),
        ([0.0, 3.0, np.inf], None, 3.0),
    ],
)
def test_an_axis_begins_above_a_few_outliers(values, weights, floor):
    assert axis_floor(values, weights) == floor


def test_outputs_are_called_outputs():
    profiled = two_layers()
    (_, axes) = profiled.plot("memory").axes
    found = texts(axes)
    assert "outputs, at most 2.00 MiB" in found
    assert not any("temporar" in text for text in found)
    held = profiled.memory.hbm.temporaries
    assert sum(max(layer) for layer in held.values()) >= 2 * 2**20


def test_colours_of_memory_are_those_of_the_blind_safe_palette():
    okabe_ito = {
        "#000000", "#e69f00", "#56b4e9", "#009e73",
        "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
    }  # fmt: skip
    assert {to_hex(colour) for colour in CATEGORY_COLOURS.values()} <= okabe_ito
    assert len(set(CATEGORY_COLOURS.values())) == len(CATEGORY_COLOURS)


def test_memory_that_does_not_fit_is_said_in_the_title():
    def doubled(x):
        return x + x

    profiled = nj.profile(doubled, target="trn2")(types(4, 2**30))
    (_, axes) = profiled.plot("memory").axes
    assert axes.get_title(loc="left") == "HBM: 32 GiB do not fit in 23.8 GiB"
    assert axes.get_ylim()[1] > 32


@pytest.mark.slow_cases("spilled", "two layers")
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_ops_of_a_roofline_are_seen(example):
    """A dot is three points wide at least, and ops in one place are one dot."""
    (axes,) = example().plot("roofline").axes
    marks = [each for each in axes.collections if each.get_offsets().size]
    assert min(size for mark in marks for size in mark.get_sizes()) >= 26
    assert len(marks) <= len(points(example().timeline))
    sizes = [mark.get_sizes()[0] for mark in marks]
    assert sizes == sorted(sizes, reverse=True)  # the small ones are drawn on top


@pytest.mark.slow
def test_layers_are_one_dot():
    ops = [point for point in points(spilled().timeline) if point.is_matmul]
    (axes,) = spilled().plot("roofline").axes
    filled = [mark for mark in axes.collections if mark.get_facecolor().size]
    assert len(filled) < len(ops)
    largest = max(mark.get_sizes()[0] for mark in filled)
    assert largest > 2 * 1500 * max(point.share for point in ops)


@pytest.mark.slow
def test_a_greys_name_is_in_the_legend():
    (axes,) = two_layers().plot("timeline").axes
    assert "program's start and end" in texts(axes)
    (axes,) = figure("timeline").axes
    assert "loop" in texts(axes)


# -- on a page -------------------------------------------------------------------------


def test_a_picture_has_no_background_and_its_ink_reads_on_light_and_dark_pages():
    made = figure("all")
    backgrounds = [made.get_facecolor(), *(axes.get_facecolor() for axes in made.axes)]
    assert {to_rgba(colour)[3] for colour in backgrounds} == {0.0}

    def light(colour):
        linear = [((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return np.dot(linear, (0.2126, 0.7152, 0.0722)) + 0.05

    written = [axes.xaxis.label for axes in made.axes]
    written += [axes.title for axes in made.axes]
    written += [label for axes in made.axes for label in axes.get_xticklabels()]
    for colour in {text.get_color() for text in written}:
        assert light("white") / light(colour) > 4
        assert light(colour) / light("#111111") > 4


def test_pyplot_knows_a_picture_where_it_shows_figures(monkeypatch):
    """And no more, once the picture was shown: a cell shows it once."""
    from IPython import display
    from matplotlib import pyplot

    shown = []
    monkeypatch.setattr(display, "display", shown.append)
    monkeypatch.setattr("matplotlib.get_backend", lambda: "inline")
    made = figure("timeline")
    assert pyplot.get_fignums() == [made.number]
    made._ipython_display_()
    assert shown == [made]
    assert not pyplot.get_fignums()
    monkeypatch.setattr("matplotlib.get_backend", lambda: "agg")
    figure("timeline")
    assert not pyplot.get_fignums()


def test_a_pictures_resolution_is_the_users(monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "figure.dpi", 40)
    assert figure("timeline").dpi == 40
