"""Rules of the machine: what breaks one, what the error says, what is just legal."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError

SBUF, PSUM = nl.sbuf, nl.psum
DOUBLE = nisa.matmul_perf_mode.double_row


def tile(*shape, dtype="float32", memory=SBUF, address=None):
    """A tile that was written."""
    t = nl.ndarray(shape, dtype, memory, address=address)
    nisa.memset(t, 0)
    return t


def hbm(*shape, dtype="float32"):
    return nl.ndarray(shape, dtype, buffer=nl.private_hbm)


def hbm_zeros(*shape, dtype):
    t = hbm(*shape, dtype=dtype)
    nisa.dma_copy(t, tile(*shape, dtype=dtype))
    return t


def index(*shape):
    return tile(*shape, dtype="uint32")


def run(body: Callable[[], object], target: str):
    def kernel():
        body()

    return nki.jit(kernel).with_target(target).trace()


def matmul(k, m, n, dtype="bfloat16", moving=None, dst="float32", shape=None, **keys):
    rows = (2,) if "perf_mode" in keys else ()
    a = tile(k, *rows, m, dtype=dtype)
    b = tile(k, *rows, n, dtype=moving or dtype)
    c = nl.ndarray(shape or (m, n), dst, PSUM)
    nisa.nc_matmul(c[:, :n] if shape else c, a, b, **keys)


def bits(op):
    t = tile(8, 8)
    nisa.tensor_tensor(t, t, t, op)


def scalar(engine, op0, op1=None, operand="float32", target_dtype="float32"):
    t, s = tile(8, 8, dtype=target_dtype), tile(8, 1, dtype=operand)
    more = {"op1": op1, "operand1": 2.0} if op1 else {}
    nisa.tensor_scalar(t, t, op0, s, engine=engine, **more)


def copy_at(start, count, partitions=128, address=None):
    t = tile(partitions, 4, address=address)
    u = tile(count, 4)
    nisa.tensor_copy(u, t[start : start + count, :])


def five_dimensions():
    t = tile(4, 4, 4, 4, 4, 4)
    u = tile(4, 32)
    nisa.tensor_copy(u, t[:, ::2, ::2, ::2, ::2, ::2])


def transpose_of(shape, engine, dtype="float32", dst=None):
    memory = PSUM if engine == nisa.engine.tensor else SBUF
    out = nl.ndarray(shape[::-1], dst or dtype, memory)
    nisa.nc_transpose(out, tile(*shape, dtype=dtype), engine=engine)


def dma(dst="float32", **keys):
    nisa.dma_copy(hbm(16, 8, dtype=dst), tile(16, 8), **keys)


def dma_transpose(*shape, dtype="bfloat16", rows=None, found=(128, 1), **keys):
    source, out = hbm(*shape, dtype=dtype), shape[::-1]
    nisa.dma_copy(source, tile(*shape, dtype=dtype))
    if rows is not None:
        offsets = index(*found)
        source = source.ap([[shape[1], rows], [1, shape[1]]], vector_offset=offsets)
        out = (shape[1], rows)
    nisa.dma_transpose(nl.ndarray(out, dtype), source, **keys)


def gathered(name, at=None):
    found = nl.ndarray((32, 1), "uint32", address=None if at is None else (at, 0))
    nisa.dma_copy(found, hbm_zeros(32, 1, dtype="uint32"))
    view = tile(32, 8).indirect(found)
    out = nl.ndarray(view.shape, "float32")
    if name == "reciprocal":
        nisa.reciprocal(out, view)
    elif name == "data2":
        nisa.tensor_tensor(out, tile(*view.shape), view, nl.add)
    elif name == "gpsimd":
        nisa.tensor_copy(out, view, engine=nisa.engine.gpsimd)
    else:
        nisa.tensor_copy(out, view)


def predicated(dtype):
    t = tile(8, 8)
    nisa.tensor_copy_predicated(t, t, tile(8, 8, dtype=dtype))


def activation(**keys):
    t = tile(8, 8)
    nisa.activation(t, nl.exp, t, **keys)


def both_in_psum():
    t = tile(8, 8, memory=PSUM)
    nisa.tensor_tensor(tile(8, 8), t, t, nl.add)


def gpsimd_psum():
    t = tile(8, 8, memory=PSUM)
    nisa.tensor_copy(tile(8, 8), t, engine=nisa.engine.gpsimd)


def exponential():
    t = tile(8, 8)
    nisa.exponential(t, t)


def activate2():
    t = tile(8, 8)
    nisa.activate2(t, nl.exp, t, 1.0, 0.0, nl.multiply, nl.add)


def range_select():
    t, b = tile(8, 8), tile(8, 1)
    nisa.range_select(t, t, nl.greater_equal, nl.less, b, b)


def ocp():
    t = nl.ndarray((8, 8), "float8_e4m3fn")
    nisa.tensor_copy(t, tile(8, 8))


def on(engine, function, **keys):
    t = tile(8, 8)
    function(t, t, engine=engine, **keys)


E = nisa.engine
# What is written, where, and what the error says.
BROKEN = {
    "partitions": ("trn2", lambda: tile(129, 4), r"129 partitions.*at most 128"),
    "fixed partitions": (
        "trn2",
        lambda: tile(64, 4, address=(96, 0)),
        r"64 partitions from partition 96",
    ),
    "start": ("trn2", lambda: copy_at(8, 8), r"partition 8.*at 0 or 32 or 64"),
    "start of 64": ("trn2", lambda: copy_at(32, 64), r"partition 32.* 0 or 64"),
    "start of 96": (
        "trn2",
        lambda: copy_at(32, 96),
        r"partition 32.*96 partitions start at 0 ",
    ),
    "fixed start": (
        "trn2",
        lambda: copy_at(0, 8, 8, address=(16, 0)),
        r"starts at partition 16",
    ),
    "dimensions": ("trn2", five_dimensions, r"5 free dimensions.*at most 4"),
    "gpsimd psum": (
        "trn2",
        gpsimd_psum,
        r"gpsimd engine cannot read.*tensor_copy",
    ),
    "two in psum": ("trn2", both_in_psum, r"read at once.*copy one of them"),
    "stationary": ("trn2", lambda: matmul(128, 129, 8, shape=(128, 8)), r"dst must be"),
    "columns": (
        "trn2",
        lambda: matmul(64, 96, 8, tile_size=(64, 64), tile_position=(0, 0)),
        r"96 columns.*at most 64",
    ),
    "rows": ("trn2", lambda: matmul(96, 64, 8, tile_size=(64, 64)), r"at most 64, the"),
    "moving": ("trn2", lambda: matmul(8, 8, 513), r"513 columns.*at most 512"),
    "moving v4": (
        "trn3",
        lambda: matmul(8, 8, 4097, shape=(8, 4097)),
        r"at most 4096",
    ),
    "classes": (
        "trn2",
        lambda: matmul(8, 8, 8, "float32", "bfloat16"),
        r"go only with each other",
    ),
    "integers": (
        "trn2",
        lambda: matmul(8, 8, 8, "int32"),
        r"use bfloat16.*not int32",
    ),
    "two e4m3": (
        "trn3",
        lambda: matmul(8, 8, 8, "float8_e4m3", "float8_e4m3fn"),
        r"one of the two E4M3",
    ),
    "bf16 psum": ("trn2", lambda: matmul(8, 8, 8, dst="bfloat16"), r"target trn3"),
    "double row": (
        "trn1",
        lambda: matmul(8, 8, 8, "float8_e5m2", perf_mode=DOUBLE),
        r"double_row is not possible on NeuronCore-v2.*target trn2, trn3",
    ),
    "double row dtype": (
        "trn2",
        lambda: matmul(8, 8, 8, perf_mode=DOUBLE),
        r"double_row with bfloat16",
    ),
    "quarter": (
        "trn1",
        lambda: matmul(8, 8, 8, tile_size=(32, 128), tile_position=(0, 0)),
        r"sizes 64, 128",
    ),
    "position": (
        "trn2",
        lambda: matmul(8, 8, 8, tile_size=(64, 128), tile_position=(32, 0)),
        r"a tile of 64 start at one of 0, 64",
    ),
    "bank": (
        "trn2",
        lambda: nisa.nc_matmul(
            nl.ndarray((8, 1024), "float32", PSUM)[:, 256:768],
            tile(8, 8),
            tile(8, 512),
        ),
        r"bytes 1024 to 3071.*2048 bytes from a multiple",
    ),
    "vector transpose": (
        "trn2",
        lambda: transpose_of((32, 64), E.vector),
        r"at most \[32, 32\]",
    ),
    "transpose dtype": (
        "trn2",
        lambda: transpose_of((32, 32), E.tensor, "bfloat16", "float32"),
        r"make dst bfloat16",
    ),
    "bits of floats": ("trn2", lambda: bits(nl.bitwise_and), r"take integers.*view"),
    "operand dtype": (
        "trn2",
        lambda: scalar(E.vector, nl.add, operand="bfloat16"),
        r"operand0 must be float32",
    ),
    "scalar operators": (
        "trn2",
        lambda: scalar(E.scalar, nl.subtract),
        r"subtract on ScalarE.*use engine=vector",
    ),
    "gpsimd operators": ("trn2", lambda: scalar(E.gpsimd, nl.add), r"nl.rsqrt"),
    "scalar copy": (
        "trn1",
        lambda: on(E.scalar, nisa.tensor_copy),
        r"ScalarE is not possible on NeuronCore-v2.*nl.copy",
    ),
    "scalar bias": ("trn1", lambda: activation(bias=1.0), r"a tile of shape \(8, 1\)"),
    "scale dtype": (
        "trn2",
        lambda: activation(scale=tile(8, 1, dtype="bfloat16")),
        r"scale must be float32",
    ),
    "predicate": ("trn2", lambda: predicated("float32"), r"one of uint8"),
    "exponential": ("trn2", exponential, r"target trn3.*or nisa.activation"),
    "activate2": ("trn2", activate2, r"target trn3"),
    "range_select": ("trn1", range_select, r"target trn2, trn3"),
    "ocp": ("trn2", ocp, r"float8_e4m3 \(largest value 240\)"),
    "indirect": ("trn2", lambda: gathered("tensor_copy"), r"target trn3"),
    "indirect name": ("trn3", lambda: gathered("reciprocal"), r"only nc_matmul"),
    "indirect operand": ("trn3", lambda: gathered("data2"), r"input 1 .*\.indirect"),
    "indirect engine": ("trn3", lambda: gathered("gpsimd"), r"engine vector or scalar"),
    "indirect start": (
        "trn3",
        lambda: gathered("tensor_copy", at=8),
        r"index .* starts at partition 8.*multiple of 32",
    ),
    "hwdge": ("trn1", lambda: dma(dge_mode=nisa.dge_mode.hwdge), r"target trn2, trn3"),
    "hwdge dtype": (
        "trn2",
        lambda: dma("bfloat16", dge_mode=nisa.dge_mode.hwdge),
        r"one dtype.*swdge",
    ),
    "priority": (
        "trn2",
        lambda: dma(priority=1),
        r"priority is not possible on NeuronCore-v3",
    ),
    "priority range": ("trn3", lambda: dma(priority=4), r"0 to 3"),
    "transpose rows": (
        "trn2",
        lambda: dma_transpose(32, 64, dge_mode=nisa.dge_mode.hwdge),
        r"16 rows",
    ),
    "transpose bytes": (
        "trn2",
        lambda: dma_transpose(16, 64, dtype="float32", dge_mode=nisa.dge_mode.hwdge),
        r"2 bytes",
    ),
    "gathered rows": (
        "trn2",
        lambda: dma_transpose(64, 64, rows=24, found=(128, 1)),
        r"multiple of 16 rows",
    ),
    "gathered bytes": (
        "trn2",
        lambda: dma_transpose(64, 64, dtype="float8_e4m3", rows=32, found=(32, 1)),
        r"2 bytes",
    ),
    "gathered v2": (
        "trn1",
        lambda: dma_transpose(64, 64, rows=32, found=(32, 1)),
        r"a gathering dma_transpose",
    ),
}
LEGAL = {
    "quadrant": ("trn2", lambda: copy_at(96, 32)),
    "half": ("trn1", lambda: copy_at(64, 64)),
    "moving": ("trn1", lambda: matmul(128, 128, 512)),
    "moving v4": ("trn3", lambda: matmul(8, 8, 4096)),
    "moving bf16": ("trn3", lambda: matmul(8, 8, 8192, dst="bfloat16")),
    "whole psum": ("trn2", lambda: tile(128, 8, 512, memory=PSUM)),
    "second bank": (
        "trn2",
        lambda: nisa.nc_matmul(
            nl.ndarray((8, 1024), "float32", PSUM)[:, 512:], tile(8, 8), tile(8, 512)
        ),
    ),
    "fp8 pair": ("trn2", lambda: matmul(8, 8, 8, "float8_e4m3", "float8_e5m2")),
    "tf32": ("trn1", lambda: matmul(8, 8, 8, "float32", "tfloat32")),
    "column tile": (
        "trn2",
        lambda: matmul(32, 32, 8, tile_size=(32, 32), tile_position=(96, 64)),
    ),
    "scaled": ("trn2", lambda: scalar(E.scalar, nl.multiply, nl.add)),
    "scalar v4": ("trn3", lambda: scalar(E.scalar, nl.subtract)),
    "rsqrt": ("trn2", lambda: scalar(E.gpsimd, nl.rsqrt)),
    "scalar bias": ("trn2", lambda: activation(bias=1.0)),
    "indirect": ("trn3", lambda: gathered("tensor_copy")),
    "hwdge": ("trn2", lambda: dma(dge_mode=nisa.dge_mode.hwdge)),
    "gathered": ("trn2", lambda: dma_transpose(64, 64, rows=32, found=(32, 1))),
    "transpose": ("trn2", lambda: dma_transpose(16, 64, dge_mode=nisa.dge_mode.hwdge)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_limits_are_refused_with_line_and_remedy(case):
    target, body, pattern = BROKEN[case]
    with pytest.raises(
        InvalidProgramError, match=re.compile(pattern, re.DOTALL)
    ) as found:
        run(body, target)
    assert "test_limits.py:" in str(found.value.location)
    assert found.value.remedy


@pytest.mark.parametrize("case", LEGAL)
def test_legal_instructions_are_traced(case):
    target, body = LEGAL[case]
    assert list(run(body, target).body.walk())


def test_an_instruction_that_was_seen_is_not_checked_again_and_others_are():
    def kernel(rows):
        t, u = tile(128, 4), tile(32, 4)
        for start in rows:
            nisa.tensor_copy(u, t[start : start + 32, :])

    made = nki.jit(kernel).with_target("trn2")
    assert len(list(made.trace((0, 32, 0, 96)).body.walk())) == 6
    with pytest.raises(InvalidProgramError, match="partition 40"):
        made.trace((0, 32, 40))


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("eager", [False, True])
def test_runtime_indices_out_of_bounds(eager):
    import jax

    @nki.jit
    def gather(a, at):
        rows = nl.load(at)
        t = nl.ndarray((8, 4), "float32")
        nisa.dma_copy(t, a.ap([[4, 8], [1, 4]], vector_offset=rows))
        out = nl.ndarray((8, 4), "float32", buffer=nl.shared_hbm)
        nisa.dma_copy(out, t)
        return out

    @nki.jit
    def loop(a, at, count):
        out = nl.ndarray((8, 4), "float32", buffer=nl.shared_hbm)
        for i in nl.dynamic_range(count):
            t = nl.ndarray((1, 4), "float32")
            nisa.dma_copy(t, a[nl.ds(i, 1)])
            nisa.dma_copy(out[nl.ds(i, 1)], t)
        return out

    a = np.arange(40, dtype=np.float32).reshape(10, 4)
    at = np.arange(8, dtype=np.uint32)[:, None]
    with jax.disable_jit(eager):
        np.testing.assert_array_equal(gather(a, at), a[:8])
        np.testing.assert_array_equal(loop(a, at, 8), a[:8])
        with pytest.raises(InvalidProgramError, match="out of bounds") as found:
            loop(a, at, 9)
        assert "test_limits.py:" in str(found.value.location)
        at[3] = 10
        with pytest.raises(InvalidProgramError, match="0 to 9"):
            gather(a, at)


@pytest.mark.slow
def test_under_a_transformation_results_are_poison():
    import jax
    import jax.numpy as jnp

    @nki.jit
    def pick(a, at):
        rows = nl.load(at)
        t = nl.ndarray((4, 4), a.dtype)
        nisa.dma_copy(t, a.ap([[4, 4], [1, 4]], vector_offset=rows))
        out = nl.ndarray((4, 4), a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, t)
        return out

    at = jnp.array([[0], [9], [1], [2]], jnp.uint32)
    jitted = jax.jit(pick)
    assert np.isnan(jitted(jnp.ones((8, 4), jnp.float32), at)).all()
    assert (jitted(jnp.ones((8, 4), jnp.int32), at) == -1).all()
    assert (jitted(jnp.ones((8, 4), jnp.int32), at % 8) == 1).all()
