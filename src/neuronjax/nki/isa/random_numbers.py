"""Checks of random-number instructions that `ir.nki_instructions` cannot express."""

from __future__ import annotations

from typing import Any

from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.request import GPSIMD_WORDS, VECTOR_WORDS, Request, instruction


@instruction
def rng(call: Request) -> Any:
    """Refuse a dst in PSUM, which GpSimd does not reach."""
    return call.emit(_reaching(call, "vector"))


@instruction
def rand2(call: Request) -> Any:
    least, most = call.of("min", "max")
    numbers = isinstance(least, int | float) and isinstance(most, int | float)
    if numbers and least >= most:
        call.refuse(f"min {least}, max {most}", "give min below max")
    return call.emit()


@instruction
def dropout(call: Request) -> Any:
    prob = call.values["prob"]
    if isinstance(prob, int | float) and not 0 <= prob <= 1:
        call.refuse(f"prob {prob}", "use 0 to 1")
    return call.emit()


@instruction
def set_rng_seed(call: Request) -> Any:
    seeds = call.values["src_seeds"]
    if seeds.size != 1:
        call.refuse(f"src_seeds has shape {seeds.shape}", "give shape (1, 1)")
    return call.emit()


@instruction
def rand_set_state(call: Request) -> Any:
    by = call.engine("gpsimd")
    _check_words(call, "src_seeds", by)
    return call.emit(by)


@instruction
def rand_get_state(call: Request) -> Any:
    by = _reaching(call, "gpsimd")
    _check_words(call, "dst", by)
    return call.emit(by)


def _reaching(call: Request, default: str) -> str:
    by = call.engine(default)
    if by == "gpsimd":
        call.check_place("dst", call.values["dst"], ("sbuf",))
    return by


def _check_words(call: Request, name: str, engine: str) -> None:
    tile = call.values[name]
    words = VECTOR_WORDS if engine == "vector" else GPSIMD_WORDS
    if tile.size != tile.shape[0] * words:
        call.refuse(
            f"{name} is {tile.dtype}{tile.shape}",
            f"give uint32 of shape (lanes, {words}) for {engine}",
        )
    if engine == "vector" and "xorwow" not in tracing.current().core.capabilities:
        call.refuse("engine vector", "use gpsimd: VectorE has XORWOW from trn3 on")
