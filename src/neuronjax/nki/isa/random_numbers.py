"""Random numbers: `rng`, `rand2`, `dropout`, seeds and states."""

from __future__ import annotations

from typing import Any

from neuronjax.ir.kernel import Access
from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.constants import engine as Engine
from neuronjax.nki.isa.operands import (
    ON_CHIP,
    as_float,
    check_same_shape,
    check_scalar_operand,
    check_tensor,
    engine_name,
    refuse,
)
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction, emit

_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_GPSIMD_WORDS = 6
_VECTOR_WORDS = 24
_WORD = ("int32", "uint32", "float32")


def _state(engine: str) -> Access:
    """The generators of an engine, as an operand: uint32 [128, words]."""
    words = _GPSIMD_WORDS
    if engine == "vector":
        xorwow = "xorwow" in tracing.current().core.capabilities
        words = _VECTOR_WORDS if xorwow else 1
    return tracing.current().state(f"{engine}.random", (128, words), "uint32")


def rng(
    dst: NkiTensor, engine: Any = Engine.vector, name: str | None = None
) -> NkiInstruction:
    """dst = random bits.

    Args:
        dst: on chip (SBUF for GpSimd), integers.
        engine: vector, or gpsimd from NeuronCore-v3 on.
        name: label of the instruction.
    """
    by = engine_name("rng", engine, ("vector", "gpsimd"), "vector")
    check_tensor("rng", "dst", dst, *(ON_CHIP if by == "vector" else ("sbuf",)))
    if dst.dtype not in _INTEGERS:
        refuse("rng", f"dst is {dst.dtype}", f"one of {', '.join(_INTEGERS)}")
    state = _state(by)
    return emit("rng", by, [dst, state], [state], label=name)


def rand2(
    dst: NkiTensor, min: Any, max: Any, name: str | None = None
) -> NkiInstruction:
    """dst = uniform numbers between min and max.

    Args:
        dst: on chip.
        min: a number, or a tensor of shape (partitions, 1).
        max: the same, larger.
        name: label of the instruction.
    """
    check_tensor("rand2", "dst", dst, *ON_CHIP)
    for label, value in (("min", min), ("max", max)):
        check_scalar_operand("rand2", label, value, dst.shape[0])
    if isinstance(min, int | float) and isinstance(max, int | float) and min >= max:
        refuse("rand2", f"min {min}, max {max}", "min below max")
    state = _state("vector")
    operands = [as_float(min), as_float(max), state]
    return emit("rand2", "vector", [dst, state], operands, label=name)


def dropout(
    dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None
) -> NkiInstruction:
    """dst = data, elements replaced by 0 with a probability.

    Args:
        dst: on chip, of data's shape and dtype.
        data: on chip.
        prob: a number, or a tensor of shape (partitions, 1); 1 drops everything.
        name: label of the instruction.
    """
    check_tensor("dropout", "dst", dst, *ON_CHIP)
    check_tensor("dropout", "data", data, *ON_CHIP)
    check_same_shape("dropout", dst, ("data", data))
    check_scalar_operand("dropout", "prob", prob, data.shape[0])
    if dst.dtype != data.dtype:
        refuse("dropout", f"{data.dtype} into {dst.dtype}", "give both one dtype")
    if isinstance(prob, int | float) and not 0 <= prob <= 1:
        refuse("dropout", f"prob {prob}", "0 to 1")
    state = _state("vector")
    operands = [data, as_float(prob), state]
    return emit("dropout", "vector", [dst, state], operands, label=name)


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seeds VectorE's generators.

    Args:
        src_seeds: on chip, (1, 1), 32 bits.
        name: label of the instruction.
    """
    check_tensor("set_rng_seed", "src_seeds", src_seeds, *ON_CHIP)
    if src_seeds.size != 1 or src_seeds.dtype not in _WORD:
        refuse(
            "set_rng_seed",
            f"src_seeds is {src_seeds.dtype}{src_seeds.shape}",
            "shape (1, 1) of a 32-bit type",
        )
    return emit("set_rng_seed", "vector", [_state("vector")], [src_seeds], label=name)


def rand_set_state(
    src_seeds: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Sets the state of an engine's generators, one row per lane.

    Args:
        src_seeds: SBUF, uint32, (lanes, 6) for gpsimd, (lanes, 24) for vector.
        engine: gpsimd (default), or vector from NeuronCore-v4 on.
        name: label of the instruction.
    """
    by = engine_name("rand_set_state", engine, ("gpsimd", "vector"), "gpsimd")
    check_tensor("rand_set_state", "src_seeds", src_seeds, "sbuf")
    _check_words("rand_set_state", "src_seeds", src_seeds, by)
    state = _state(by)
    return emit("rand_set_state", by, [state], [src_seeds, state], label=name)


def rand_get_state(
    dst: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """dst = the state of an engine's generators, one row per lane.

    Args:
        dst: uint32, (lanes, 6) for gpsimd, (lanes, 24) for vector.
        engine: gpsimd (default), or vector from NeuronCore-v4 on.
        name: label of the instruction.
    """
    by = engine_name("rand_get_state", engine, ("gpsimd", "vector"), "gpsimd")
    check_tensor(
        "rand_get_state", "dst", dst, *(ON_CHIP if by == "vector" else ("sbuf",))
    )
    _check_words("rand_get_state", "dst", dst, by)
    return emit("rand_get_state", by, [dst], [_state(by)], label=name)


def _check_words(where: str, label: str, tile: NkiTensor, engine: str) -> None:
    words = _GPSIMD_WORDS if engine == "gpsimd" else _VECTOR_WORDS
    if tile.dtype != "uint32" or tile.size != tile.shape[0] * words:
        refuse(
            where,
            f"{label} is {tile.dtype}{tile.shape}",
            f"uint32 of shape (lanes, {words}) for {engine}",
        )
    if engine == "vector" and "xorwow" not in tracing.current().core.capabilities:
        refuse(where, "engine vector", "gpsimd: VectorE has XORWOW from trn3 on")
