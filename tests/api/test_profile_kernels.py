"""`neuronjax.profile` of kernels: shapes are enough, and every report works."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.cli import app
from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.hardware import resolve_target
from neuronjax.nki import collectives as ncc
from neuronjax.report.memory_samples import memory_samples
from neuronjax.timing.collectives import collective_time
from tests.nki import published_kernels

K, M, N = 512, 256, 1024
MATRICES = (
    jax.ShapeDtypeStruct((K, M), jnp.bfloat16),
    jax.ShapeDtypeStruct((K, N), jnp.bfloat16),
)


@nki.jit(target="trn2")
def scaled(x, factor=2.0):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nl.store(out, tile)
    return out


@pytest.fixture(scope="module")
def tiled():
    return nj.profile(published_kernels.matmul_tiled, target="trn2")(*MATRICES)


def test_what_a_matmul_comes_to(tiled):
    found = tiled.metrics
    tiles = (K // 128) * (M // 128) * (N // 512)
    assert found["model_flops"] == 2 * M * N * K
    assert found["matmul_instruction_count"] == tiles
    assert found["hbm_write_bytes"] == M * N * 2
    assert found["hbm_read_bytes"] == tiles * 128 * (128 + 512) * 2
    assert 0 < found["mfu_estimated_percent"] < 1
    assert tiled.target.name == "trn2"
    assert tiled.core.lnc == 1
    assert tiled.total_seconds == tiled.timeline.total_seconds > 0


def test_loads_out_of_the_loop_are_fewer_and_quicker(tiled):
    others = [
        nj.profile(kernel, target="trn2")(*MATRICES)
        for kernel in (
            published_kernels.matmul_hoisted,
            published_kernels.matmul_block_free,
        )
    ]
    times = [p.total_seconds for p in (tiled, *others)]
    read = [p.metrics["hbm_read_bytes"] for p in (tiled, *others)]
    assert times == sorted(times, reverse=True)
    assert read == sorted(read, reverse=True)


def test_time_is_by_the_lines_of_the_kernel(tiled):
    lines = tiled.by_source()
    assert all("published_kernels.py:" in line for line in lines)
    ops = tiled.by_op()
    assert set(ops) == {"dma_copy", "nc_matmul", "tensor_copy"}
    assert ops["nc_matmul"].seconds["tensor"] == pytest.approx(
        tiled.timeline.busy_seconds("tensor")
    )
    assert "critical path" in tiled.notes[-1]


def test_what_would_save_time(tiled):
    changes = {change.kind: change for change in tiled.limits(10)}
    assert {"line", "transfers", "spills"} <= changes.keys()
    assert all(0 < c.seconds < tiled.total_seconds for c in changes.values())
    assert all(c.basis == "bound" for c in changes.values())
    assert "published_kernels.py:" in changes["line"].what


@pytest.mark.slow
def test_reports(tiled, tmp_path):
    text = str(tiled)
    assert "matmul_tiled on trn2, LNC 1, NKI kernel" in text
    assert max(map(len, text.splitlines())) <= 80
    plain = json.loads(tiled.to_json())
    assert plain["metrics"]["model_flops"] == 2 * M * N * K
    tiled.to_csv(tmp_path / "events.csv")
    lines = (tmp_path / "events.csv").read_text().splitlines()
    assert len(lines) == len(tiled.timeline.events) + 1
    assert len(tiled.plot("all").axes) == 4


@nki.jit
def nine_banks(x):
    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.load(x)
    sums = nl.ndarray((128, 9 * 512), dtype=nl.float32, buffer=nl.psum)
    for n in range(36):
        nisa.nc_matmul(sums[:, 128 * n : 128 * n + 128], a, a)
    tile = nl.ndarray((128, 9 * 512), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=sums)
    nisa.dma_copy(dst=out, src=tile[:, :128])
    return out


def test_sums_that_do_not_fit_are_refused_as_running_refuses_them():
    x = np.ones((128, 128), np.float32)
    told = []
    for ask in (nine_banks, nj.profile(nine_banks)):
        with pytest.raises(InvalidProgramError, match=r"18,432 bytes .* of PSUM") as e:
            ask(x)
        told.append(str(e.value))
    assert told[0] == told[1]


def test_the_table_of_memory_has_a_row_of_sums(tiled):
    row = next(x for x in str(tiled.memory).splitlines() if "PSUM" in x)
    assert "2 MiB" in row


def test_memory_over_time(tiled):
    memory = tiled.memory
    samples = memory_samples(tiled.timeline, memory)
    assert set(samples) == {"SBUF", "HBM", "PSUM"}
    partition = tiled.core.spec.psum_bytes // 128
    assert 2048 <= max(memory.psum_usage) // 128 <= partition
    needed = (128 + 512 + 512) * 2  # of a turn, per partition
    assert needed <= memory.sbuf_peak_bytes / 128
    assert memory.sbuf_peak_bytes / 128 < 40 * needed
    held = (K * M + K * N + M * N) * 2
    assert memory.hbm.bytes == held
    assert memory.edges[-1] == pytest.approx(tiled.total_seconds)
    assert str(memory) in str(tiled)
    tiled.check_memory()


def test_values_are_computed_when_they_are_asked_for():
    x = np.arange(128 * 4, dtype=np.float32).reshape(128, 4)
    profiled = nj.profile(scaled)(x, factor=3.0)
    np.testing.assert_array_equal(np.asarray(profiled.outputs), 3 * x)
    of_types = nj.profile(scaled)(jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert of_types.total_seconds == profiled.total_seconds
    assert scaled.profile(x).total_seconds == profiled.total_seconds
    with pytest.raises(InvalidProgramError, match="types of arguments"):
        _ = of_types.outputs


def test_a_kernel_keeps_its_target_unless_another_is_named():
    x = jax.ShapeDtypeStruct((128, 512), jnp.float32)
    assert nj.profile(scaled)(x).target.name == "trn2"
    assert nj.profile(scaled, target="trn1")(x).target.name == "trn1"


def test_what_a_kernel_does_not_have():
    with pytest.raises(InvalidProgramError, match="policy"):
        nj.profile(scaled, policy="bf16")
    profiled = nj.profile(scaled, peak="mx")
    with pytest.raises(InvalidProgramError, match="mx"):
        profiled(jax.ShapeDtypeStruct((128, 512), jnp.float32))
    plain = nj.profile(scaled)(jax.ShapeDtypeStruct((128, 512), jnp.float32))
    with pytest.raises(NeuronJaxError, match="kernel"):
        _ = plain.lowered


def test_a_grid_runs_on_both_cores():
    @nki.jit(target="trn2")
    def halves(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        rows = x.shape[0] // nl.num_programs()
        first = nl.program_id(0) * rows
        for n in range(rows // 128):
            part = slice(first + n * 128, first + (n + 1) * 128)
            tile = nl.load(x[part, 0:512])
            nisa.reciprocal(tile, tile)
            nl.store(out[part, 0:512], tile)
        return out

    x = jax.ShapeDtypeStruct((2048, 512), jnp.float32)
    one, two = (nj.profile(halves[n])(x) for n in (1, 2))
    assert (one.core.lnc, two.core.lnc) == (1, 2)
    assert one.total_seconds / 2 < two.total_seconds < one.total_seconds
    assert two.metrics["hbm_read_bytes"] == one.metrics["hbm_read_bytes"]
    assert two.timeline.busy_seconds("vector") == pytest.approx(
        one.timeline.busy_seconds("vector") / 2
    )


def test_a_loop_of_the_device_is_one_span():
    @nki.jit(target="trn2")
    def repeated(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        for _ in nl.dynamic_range(6):
            nisa.reciprocal(tile, tile)
        nl.store(out, tile)
        return out

    profiled = nj.profile(repeated)(jax.ShapeDtypeStruct((128, 512), jnp.float32))
    (loop,) = profiled.timeline.loops
    assert loop.trips == 6
    assert profiled.metrics["vector_engine_instruction_count"] == 6


def test_the_command(tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text(
        "from neuronjax import nki\n"
        "import neuronjax.nki.language as nl\n"
        "import neuronjax.nki.isa as nisa\n"
        "@nki.jit\n"
        "def doubled(x):\n"
        "    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n"
        "    tile = nl.load(x)\n"
        "    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)\n"
        "    nl.store(out, tile)\n"
        "    return out\n"
    )
    arguments = ["profile", f"{file}:doubled", "--args", "bf16[128,1024]"]
    shown = CliRunner().invoke(app, [*arguments, "--by", "source"])
    assert shown.exit_code == 0, shown.output
    assert "kernels.py:8" in shown.output
    assert "critical path" in shown.output


# -- collectives -----------------------------------------------------------------------

RANKS = ncc.ReplicaGroup([[0, 1, 2, 3]])


@nki.jit(target="trn2")
def summed(x, y):
    """All ranks' x, and beside that something of y."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    found = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    nisa.dma_copy(source, x)
    ncc.all_reduce([source], [found], RANKS, nl.add)
    tile = nl.load(y)
    for _ in range(16):
        nisa.activation(tile, nl.exp, tile)
    nisa.tensor_tensor(tile, tile, nl.load(found), nl.add)
    nl.store(out, tile)
    return out


def test_a_collective_takes_what_it_takes_in_a_program():
    x = jax.ShapeDtypeStruct((4, 128, 2048), jnp.bfloat16)
    found = nj.profile(summed.with_ranks(4))(x, x)
    (event,) = found.timeline.of("cc")
    expected = collective_time(
        "all_reduce", 128 * 2048 * 2, [[0, 1, 2, 3]], resolve_target("trn2")
    )
    took = event.end_seconds - event.start_seconds
    assert took == pytest.approx(expected.seconds, rel=1e-12)
    assert took > 1e-6
    assert found.metrics["cc_op_active_time"] == pytest.approx(took)
    assert found.by_op()["all_reduce.add"].seconds["cc"] == pytest.approx(took)


def test_what_does_not_wait_for_a_collective_goes_on():
    x = jax.ShapeDtypeStruct((4, 128, 2048), jnp.bfloat16)
    found = nj.profile(summed.with_ranks(4))(x, x).timeline
    (event,) = found.of("cc")
    exps = [e for e in found.of("scalar") if e.name == "ACTIVATE"]
    assert exps[0].start_seconds < event.end_seconds < exps[-1].end_seconds
    stored, *_ = (e for e in found.of("dma") if e.name == "store")
    loaded = max(e.start_seconds for e in found.of("dma") if e.name == "load")
    assert stored.end_seconds <= event.start_seconds
    assert event.end_seconds <= loaded
    parts = event.end_seconds - event.start_seconds + sum(e.queue_seconds for e in exps)
    assert found.total_seconds < parts + stored.end_seconds + 6e-6


def test_a_collective_of_a_kernel_in_a_program():
    x = jax.ShapeDtypeStruct((4, 128, 2048), jnp.bfloat16)
    kernel = summed.with_ranks(4)
    alone = nj.profile(kernel)(x, x)
    step = nj.profile(lambda x, y: kernel(x, y), target="trn2")(x, x)
    own, whole = (p.timeline.scheduled_seconds for p in (alone, step))
    assert whole == pytest.approx(own, rel=0.1)
    for name in ("cc_op_active_time", "hbm_read_bytes", "hbm_write_bytes"):
        assert step.metrics[name] == pytest.approx(alone.metrics[name]), name


def test_cores_of_a_rank_share_its_collectives():
    @nki.jit(target="trn2")
    def each(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        mine = nl.ndarray((128, 512), x.dtype, buffer=nl.hbm)
        found = nl.ndarray((128, 512), x.dtype, buffer=nl.hbm)
        rows = slice(nl.program_id(0) * 128, nl.program_id(0) * 128 + 128)
        nisa.dma_copy(mine, x[rows, 0:512])
        ncc.all_reduce([mine], [found], RANKS, nl.add)
        nisa.dma_copy(out[rows, 0:512], found)
        return out

    x = jax.ShapeDtypeStruct((4, 256, 512), jnp.bfloat16)
    found = nj.profile(each[2].with_ranks(4))(x)
    first, second = found.timeline.of("cc")
    assert first.end_seconds <= second.start_seconds
    spent = sum(e.end_seconds - e.start_seconds for e in (first, second))
    assert found.timeline.busy_seconds("cc") == pytest.approx(spent)


def test_printing_takes_a_transfer():
    def kernel(prints):
        @nki.jit(target="trn2")
        def shown(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            tile = nl.load(x)
            for _ in range(prints):
                nl.device_print("tile", tile)
            nl.store(out, tile)
            return out

        return nj.profile(shown)(jax.ShapeDtypeStruct((128, 512), jnp.float32))

    none, three = kernel(0), kernel(3)
    size = 128 * 512 * 4
    assert three.metrics["hbm_write_bytes"] == size * 4
    assert none.metrics["hbm_write_bytes"] == size
    assert three.total_seconds > none.total_seconds
    assert three.by_op()["device_print"].seconds["dma"] > 0


def test_a_copy_within_hbm_passes_the_engines_once():
    @nki.jit(target="trn2")
    def copied(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    x = jax.ShapeDtypeStruct((4096, 2048), jnp.float32)
    found = nj.profile(copied)(x).metrics
    assert found["hbm_read_bytes"] == found["hbm_write_bytes"] == 4096 * 2048 * 4
    assert 0.5 < found["dma_efficiency_percent"] <= 1.0


# -- published kernels -----------------------------------------------------------------


@pytest.mark.slow
def test_published_kernels_compute():
    """What is timed is right: matmuls against NumPy, Mamba against its recurrence."""
    generator = np.random.default_rng(0)
    a = generator.integers(-1, 2, (256, 256)).astype(ml_dtypes.bfloat16)
    b = generator.integers(-1, 2, (256, 512)).astype(ml_dtypes.bfloat16)
    blocked = published_kernels.matmul_block_all(a, b, in_m=2, in_n=1, in_k=1)
    exact = a.astype(np.float32).T @ b.astype(np.float32)
    np.testing.assert_array_equal(np.asarray(blocked), exact.astype(a.dtype))
    delta, u = (generator.random((128, 8), np.float32) for _ in range(2))
    rates = -generator.random((128, 2), np.float32)
    B, C = (generator.random((2, 8), np.float32) for _ in range(2))
    expected, state = np.zeros((128, 8)), np.zeros((128, 2))
    for t in range(8):
        decay = np.exp(delta[:, t, None] * rates)
        state = decay * state + (delta[:, t] * u[:, t])[:, None] * B[:, t]
        expected[:, t] = state @ C[:, t]
    found = published_kernels.mamba_v2(delta, u, rates, B, C)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)
