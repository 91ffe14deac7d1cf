"""`profile`: a function, an emulated one or a lowered one; arrays or their types."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import neuronjax as nj
from neuronjax.api.jit import Emulated
from neuronjax.api.profile import profile
from neuronjax.api.profile_result import Profile
from neuronjax.cli.quickstart.model import GPTConfig
from neuronjax.cli.quickstart.train import REAL, priced
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.report.memory_samples import memory_samples, stage_edges, stages
from neuronjax.timing.work import QUEUES
from tests.zoo import PROGRAMS

X = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
W = jax.ShapeDtypeStruct((1024, 2048), jnp.float32)


def layer(x, w):
    with jax.named_scope("mlp"):
        hidden = x @ w
    return jnp.tanh(hidden)


def looped(x, w):
    def body(_, carry):
        return jnp.tanh(carry @ w)

    return jax.lax.fori_loop(0, 6, body, x)


@pytest.fixture(scope="module")
def profiled() -> Profile:
    return profile(layer, policy="bf16", batch_argnums=0)(X, W)


def test_figures_are_those_of_the_timeline(profiled):
    figures = profiled.metrics
    assert figures["total_time"] == profiled.timeline.total_seconds > 0
    assert figures["model_flops"] == 2 * 512 * 1024 * 2048
    assert figures["hbm_read_bytes"] == profiled.timeline.hbm_read_bytes
    assert figures["hbm_write_bytes"] == profiled.timeline.hbm_write_bytes
    assert 0 < figures["mfu_estimated_percent"] <= figures["hfu_estimated_percent"] <= 1


def test_groups_add_up_to_the_queues(profiled):
    for groups in (profiled.by_op(), profiled.by_source(), profiled.by_module()):
        for queue in QUEUES:
            spent = sum(used.seconds.get(queue, 0.0) for used in groups.values())
            assert spent == pytest.approx(profiled.timeline.busy_seconds(queue))
    engines = profiled.by_engine()
    assert engines["tensor"].flops == profiled.metrics["model_flops"]
    assert "mlp" in profiled.by_module()
    assert any(line.startswith(__file__) for line in profiled.by_source())


def test_summary_fits_80_columns(profiled):
    text = str(profiled)
    assert max(map(len, text.splitlines())) <= 80
    for word in ("layer on trn2, LNC 2, policy bf16", "TensorE", "MFU", "nc_matmul"):
        assert word in text
    assert str(profiled) == text
    assert "layer on trn2" in repr(profiled)
    assert "TensorE" in profiled._repr_html_()


def test_json(profiled):
    data = json.loads(profiled.to_json())
    assert data["metrics"]["total_time"] == profiled.total_seconds
    assert (data["program"], data["target"], data["lnc"]) == ("layer", "trn2", 2)
    assert data["by_op"]["nc_matmul"]["flops"] == 2 * 512 * 1024 * 2048


@pytest.mark.slow
def test_files(profiled, tmp_path):
    profiled.to_csv(tmp_path / "events.csv")
    lines = (tmp_path / "events.csv").read_text().splitlines()
    assert len(lines) == 1 + len(profiled.timeline.events)
    profiled.plot("memory").savefig(tmp_path / "memory.png", dpi=40)


def test_a_trace_adds_up_to_the_summary(profiled, tmp_path):
    trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = tmp_path / "layer.pftrace"
    profiled.to_perfetto(path)
    trace = trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    tracks, begun, spent = {}, {}, {}
    for packet in trace.packet:
        event = packet.track_event
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
        elif event.type == event.TYPE_SLICE_BEGIN:
            begun[event.track_uuid] = packet.timestamp
        elif event.type == event.TYPE_SLICE_END:
            name = tracks[event.track_uuid]
            length = packet.timestamp - begun.pop(event.track_uuid)
            spent[name] = spent.get(name, 0) + length * 1e-9
    figures = profiled.metrics
    tensor, dma = figures["tensor_engine_active_time"], figures["dma_active_time"]
    # Timestamps are whole nanoseconds.
    slack = 1e-9 * len(trace.packet)
    assert spent["TensorE"] == pytest.approx(tensor, abs=slack)
    assert spent["DMA"] == pytest.approx(dma, abs=slack)


# -- what is profiled ------------------------------------------------------------------


def test_an_emulated_function_keeps_its_target_and_policy():
    step = nj.jit(layer, target="trn3", policy="mxfp8")
    found = profile(step)(X, W)
    assert (found.target.name, found.policy.name) == ("trn3", "mxfp8")
    other = profile(step, target="trn1", policy="fp32")(X, W)
    assert (other.target.name, other.policy.name) == ("trn1", "fp32")


def test_a_lowered_program():
    lowered = nj.jit(layer, policy="bf16").lower(X, W)
    found = profile(lowered, target="trn2", policy="bf16")()
    assert found.name == "layer"
    same = profile(layer, policy="bf16")(X, W)
    assert found.total_seconds == same.total_seconds
    assert lowered.timeline(target="trn2").total_seconds == same.total_seconds


def test_a_lowered_program_has_outputs():
    lowered = nj.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((3,), jnp.float32))
    profiled = profile(lowered, target="trn2", policy=nj.Policy())
    assert profiled(jnp.arange(3.0)).outputs.tolist() == [0, 2, 4]


@pytest.mark.parametrize("options", [{"target": "trn1"}, {"policy": "fp8"}])
def test_a_lowered_program_is_lowered_again_for_what_is_named(options):
    lowered = nj.jit(layer).lower(X, W)
    assert lowered.timeline().total_seconds > 0
    found, wanted = profile(lowered, **options)(), profile(layer, **options)(X, W)
    assert found.total_seconds == wanted.total_seconds
    assert str(found).splitlines()[0] == str(wanted).splitlines()[0]


def test_a_lowered_program_gives_away_what_its_function_does():
    step = nj.jit(lambda a, b: (a + b, b.sum()), donate_argnums=0)
    x = jnp.ones((256, 256))
    plain, lowered = profile(step)(x, x), profile(step.lower(x, x))()
    kept = profile(lambda a, b: (a + b, b.sum()))(x, x)
    assert plain.memory.hbm.bytes == lowered.memory.hbm.bytes < kept.memory.hbm.bytes


def test_lnc():
    one = profile(layer, lnc=1)(X, W)
    assert (one.core.lnc, profile(layer)(X, W).core.lnc) == (1, 2)
    with pytest.raises(InvalidProgramError, match="logical NeuronCores of size 3"):
        profile(layer, lnc=3)


def test_the_policy_says_lnc_and_the_argument_goes_before():
    policy = nj.Policy(lnc=1)
    one = profile(layer, policy=policy)(X, W)
    assert one.core.lnc == 1
    assert profile(layer, policy=policy, lnc=2)(X, W).core.lnc == 2
    lowered = nj.jit(layer, target="trn2", policy=policy).lower(X, W)
    assert profile(lowered)().total_seconds == one.total_seconds
    with pytest.raises(InvalidProgramError, match="logical NeuronCores of size 2"):
        profile(layer, target="trn1", policy=nj.Policy(lnc=2))


def test_peak_is_checked_before_the_work():
    with pytest.raises(InvalidProgramError, match="'fp7'"):
        profile(layer, peak="fp7")


def test_static_arguments():
    power = profile(lambda x, n: x**n, static_argnums=1)
    assert power(X, 3).total_seconds > 0


def test_values_are_computed_when_they_are_asked_for(monkeypatch):
    x = jnp.arange(4.0)
    calls = []
    real = Emulated.__call__

    def counted(self, *args, **kwargs):
        calls.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Emulated, "__call__", counted)
    found = profile(lambda x: x + 1)(x)
    str(found)
    assert not calls
    outputs = found.outputs
    assert outputs is found.outputs
    assert len(calls) == 1
    assert outputs.tolist() == [1, 2, 3, 4]


def test_types_have_no_values(profiled):
    with pytest.raises(InvalidProgramError, match="pass arrays"):
        _ = profiled.outputs


# -- memory ----------------------------------------------------------------------------


def test_what_does_not_fit_is_an_error_on_request(profiled):
    profiled.check_memory()
    huge = jax.ShapeDtypeStruct((2**17, 2**16), jnp.float32)
    found = profile(lambda x: x + 1)(huge)
    assert "does not fit" in str(found)
    with pytest.raises(InvalidProgramError, match="needs 64 GiB of HBM"):
        found.check_memory()


@pytest.mark.parametrize(
    "options",
    [{"donate_argnums": 0}, {"donate_argnums": -2}, {"donate_argnames": "state"}],
)
def test_what_is_donated_is_not_there_twice(options):
    state = {"w": jax.ShapeDtypeStruct((4096, 4096), jnp.float32)}
    step = lambda state, x: ({"w": state["w"] * 0.5}, x + 1)  # noqa: E731
    kept = profile(nj.jit(step))(state, X).memory.hbm
    given = profile(nj.jit(step, **options))(state, X).memory.hbm
    assert kept.bytes - given.bytes == 4 * 4096 * 4096
    assert kept.categories["outputs"] - given.categories["outputs"] == 4 * 4096 * 4096


def edges_of(profiled):
    memory = profiled.memory
    return stage_edges(profiled.timeline, memory, stages(memory))


def test_memory_over_time(profiled):
    edges = edges_of(profiled)
    assert (edges[0], edges[-1]) == (0, profiled.total_seconds)
    assert (np.diff(edges) >= 0).all()
    samples = memory_samples(profiled.timeline, profiled.memory)
    held = max(size for _, size in samples["SBUF"])
    assert held == profiled.memory.sbuf_peak_bytes
    assert max(size for _, size in samples["HBM"]) == profiled.memory.hbm.bytes


def test_memory_prints_as_the_table_of_the_report(profiled):
    shown = str(profiled.memory)
    assert shown.startswith("Peak memory use")
    assert shown in str(profiled)
    assert "HBM 14 MiB of 23.8 GiB, SBUF" in repr(profiled.memory)
    assert len(repr(profiled.memory)) < 80


def test_a_loop_is_over_with_its_last_turn():
    w = jax.ShapeDtypeStruct((1024, 1024), X.dtype)
    found = profile(lambda x, w: looped(x, w) + 1)(X, w)
    (loop,) = found.timeline.loops
    edges = edges_of(found)
    assert np.isclose(edges, loop.end_seconds, rtol=1e-6).any()


# -- loops -----------------------------------------------------------------------------


def test_turns_of_a_loop_count():
    w = jax.ShapeDtypeStruct((1024, 1024), X.dtype)
    (loop,) = profile(looped)(X, w).timeline.loops
    assert loop.trips == 6


def test_turns_that_values_decide_are_noted_or_given():
    def halved(x):
        return jax.lax.while_loop(lambda x: x.max() > 1, lambda x: x / 2, x)

    assumed = profile(halved)(X)
    assert "1 iteration assumed" in assumed.notes[0]
    line = assumed.timeline.loops[0].source
    given = profile(halved, trips={line: 10})(X)
    assert not given.notes
    assert given.total_seconds > assumed.total_seconds


# -- many devices ----------------------------------------------------------------------


def test_collectives_have_figures():
    mesh = nj.make_mesh((4,), ("dp",))
    spec = jax.sharding.PartitionSpec("dp")

    def mean(x):
        return jax.lax.pmean(x * 2, "dp")

    step = jax.shard_map(mean, mesh=mesh, in_specs=spec, out_specs=spec)
    found = profile(step, target="trn2.48xlarge")(X)
    figures = found.metrics
    assert figures["cc_op_count"] == 1
    assert figures["cc_op_active_time"] == found.timeline.busy_seconds("cc") > 0
    assert "CC-cores" in str(found)
    assert found.by_engine()["cc"].seconds["cc"] == figures["cc_op_active_time"]


# -- what would save most --------------------------------------------------------------


def test_limits_are_priced():
    profiled = profile(layer, policy="fp32", batch_argnums=0)(X, W)
    found = {change.kind: change for change in profiled._changes}
    assert len(profiled.limits()) == 3
    for change in found.values():
        assert change.before_seconds == profiled.total_seconds > change.seconds
        assert change.speedup > 1
    gains = [change.gain_seconds for change in profiled.limits()]
    assert gains == sorted(gains, reverse=True)
    other = profile(layer, policy=found["precision"].what[8:-1])(X, W)
    assert other.total_seconds == found["precision"].seconds
    shared = profile(layer, policy="fp32")(
        jax.ShapeDtypeStruct((128, 1024), X.dtype), W
    )
    assert found["sharding"].seconds == shared.total_seconds
    assert found["sharding"].basis == "bound"


def test_another_number_of_cores_is_priced():
    found = {c.kind: c for c in profile(layer, lnc=1)(X, W)._changes}
    assert found["cores"].seconds == profile(layer, lnc=2)(X, W).total_seconds


def test_bounds_are_not_reached(profiled):
    bounds = [c for c in profiled._changes if c.kind in ("overlap", "transfers")]
    assert len(bounds) == 2
    assert all(change.basis == "bound" for change in bounds)
    longest = profiled.timeline.busy_seconds(profiled.busiest)
    overlap = {c.kind: c for c in bounds}["overlap"]
    assert overlap.seconds == longest + profiled.metrics["around_time"]
    assert overlap.what == "overlap all queues, so that DMA never waits"


def test_a_batch_that_the_program_cannot_have_is_no_change():
    fixed = profile(lambda x: x + jnp.ones((512, 1024)), batch_argnums=0)(X)
    assert not {"batch", "sharding"} & {change.kind for change in fixed._changes}


def test_limits_as_a_table(profiled):
    console = Console(width=80)
    with console.capture() as captured:
        console.print(profiled.limits_table())
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    for change in profiled.limits():
        assert any(change.what[:30] in line for line in lines)


def test_unsupported_stays_unsupported():
    with pytest.raises(UnsupportedError):
        profile(layer, target="trn1", policy="mxfp8")(X, W)


# -- every program ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_program_of_the_zoo_has_a_profile(program):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        function, args = program.make(0)
        found = profile(function, target="trn3", policy="bf16")(*args)
        assert found.limits(8) is not None
    assert 0 < found.total_seconds < 1
    for queue in QUEUES:
        busy = found.timeline.busy_seconds(queue)
        assert 0 <= busy <= found.total_seconds * (1 + 1e-9), queue
    assert found.metrics["model_flops"] == pytest.approx(found.timeline.flops)
    assert max(map(len, str(found).splitlines())) <= 80
    assert json.loads(found.to_json())["metrics"] == found.metrics


def test_a_callee_that_is_not_inlined_is_in_the_module_of_its_call():
    """The body of the scan over layers has so many casts in FP8 that it stays apart."""
    config = GPTConfig(layers=2, heads=2, width=64, hidden=128)
    recipe = dataclasses.replace(REAL, model=config, batch=2, length=32)
    step, *arguments = priced(recipe)
    modules = []
    for policy in ("bf16", "fp8"):
        found = nj.profile(step, target="trn2", policy=policy)(*arguments)
        every = found.timeline.instructions
        products = [i for i in every if i.name == "nc_matmul"]
        modules.append({i.location.label for i in products})
    assert modules[0] == modules[1]
    assert "blocks (forward)" in modules[0]
