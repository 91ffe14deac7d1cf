"""Random numbers: `rng`, `rand2`, `dropout`, seeds and states."""

from __future__ import annotations

from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.constants import engine as Engine
from neuronjax.nki.isa.operands import check_one_dtype, check_tensor, refuse
from neuronjax.nki.isa.request import GPSIMD_WORDS, VECTOR_WORDS, Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction


def rng(
    dst: NkiTensor, engine: Any = Engine.vector, name: str | None = None
) -> NkiInstruction:
    """dst = random bits; GpSimd has generators from NeuronCore-v3 on, dst in SBUF."""
    request = Request("rng", locals())
    return request.emit(_reaching(request, "vector"))


def rand2(
    dst: NkiTensor, min: Any, max: Any, name: str | None = None
) -> NkiInstruction:
    """dst = uniform numbers between min and max."""
    request = Request("rand2", locals())
    if isinstance(min, int | float) and isinstance(max, int | float) and min >= max:
        refuse("rand2", f"min {min}, max {max}", "min below max")
    return request.emit()


def dropout(
    dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None
) -> NkiInstruction:
    """dst = data, elements replaced by 0 with a probability."""
    request = Request("dropout", locals())
    check_one_dtype("dropout", dst, data)
    if isinstance(prob, int | float) and not 0 <= prob <= 1:
        refuse("dropout", f"prob {prob}", "0 to 1")
    return request.emit()


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seeds VectorE's generators."""
    request = Request("set_rng_seed", locals())
    if src_seeds.size != 1:
        refuse("set_rng_seed", f"src_seeds has shape {src_seeds.shape}", "shape (1, 1)")
    return request.emit()


def rand_set_state(
    src_seeds: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """Sets the state of an engine's generators, one row per lane.

    VectorE's from NeuronCore-v4 on.
    """
    request = Request("rand_set_state", locals())
    by = request.engine("gpsimd")
    _check_words("rand_set_state", "src_seeds", src_seeds, by)
    return request.emit(by)


def rand_get_state(
    dst: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> NkiInstruction:
    """dst = the state of an engine's generators, one row per lane.

    VectorE's from NeuronCore-v4 on.
    """
    request = Request("rand_get_state", locals())
    by = _reaching(request, "gpsimd")
    _check_words("rand_get_state", "dst", dst, by)
    return request.emit(by)


def _reaching(request: Request, default: str) -> str:
    """The engine, from which dst can be reached."""
    by = request.engine(default)
    if by == "gpsimd":
        check_tensor(request.spec.name, "dst", request.values["dst"], "sbuf")
    return by


def _check_words(where: str, label: str, tile: NkiTensor, engine: str) -> None:
    words = GPSIMD_WORDS if engine == "gpsimd" else VECTOR_WORDS
    if tile.size != tile.shape[0] * words:
        refuse(
            where,
            f"{label} is {tile.dtype}{tile.shape}",
            f"uint32 of shape (lanes, {words}) for {engine}",
        )
    if engine == "vector" and "xorwow" not in tracing.current().core.capabilities:
        refuse(where, "engine vector", "gpsimd: VectorE has XORWOW from trn3 on")
