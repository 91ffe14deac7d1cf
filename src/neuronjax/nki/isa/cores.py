"""Checks of `core_barrier` and `sendrecv` that `ir.nki_instructions` cannot express.

The cores are the programs of a launch `kernel[2](...)`. Both must reach the same
instructions in the same order; see `lockstep` and `linking`.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from neuronjax.execution.kernels.accesses import relative_elements
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access
from neuronjax.nki import trace as tracing
from neuronjax.nki.isa.constants import dma_engine as DmaEngine, engine as Engine
from neuronjax.nki.isa.request import Request, instruction
from neuronjax.nki.tensor import NkiTensor

CORES = (0, 1)
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
# Most bytes per partition for GpSimd's own DMA, by bytes of an element (nki.isa).
GPSIMD_LIMITS = {4: 1024, 2: 512, 1: 256}


@instruction
def core_barrier(call: Request) -> Any:
    """Wait for the other core if the launch has two.

    The documents require the data in shared HBM. Kernels of the vendor's library also
    pass an SBUF tile, so that is accepted."""
    cores, engine = call.of("cores", "engine")
    named = (cores,) if isinstance(cores, int) else tuple(cores)
    unknown = engine is None or engine == Engine.unknown
    by = "gpsimd" if unknown else call.member("engine", engine, ENGINES)
    if prod(tracing.current().grid) != 1 or named != (0,):
        _check_two_cores(call)
        if named != CORES:
            call.refuse(f"cores={cores}", f"use cores={CORES}")
        tracing.current().meet("nisa.core_barrier")
    return call.emit(by, cores=named)


class _Post(NamedTuple):
    """The data that each core passes to the other at a `sendrecv`."""

    src: NkiTensor
    send_to: int


@instruction
def sendrecv(call: Request) -> Any:
    src, dst, dma_engine = call.of("src", "dst", "dma_engine")
    send_to, source, pipe_id = call.of("send_to_rank", "recv_from_rank", "pipe_id")
    _check_two_cores(call)
    for what, value in (("send_to", send_to), ("recv_from", source)):
        if value not in CORES:
            call.refuse(f"{what}_rank={value}", "use 0 or 1")
    _check_alike(call, "src", src)
    way = DmaEngine(dma_engine)
    if way == DmaEngine.gpsimd_dma:
        _check_gpsimd(call, src)
    if _overlap(src.access(), dst.access()):
        call.refuse(
            "src and dst have elements in common, which are sent and received at once",
            "receive into another tile",
        )
    trace, meeting = tracing.current(), f"nisa.sendrecv(pipe_id={pipe_id})"
    peer = trace.meet(meeting, _Post(src, send_to))[source]
    _check_pair(call, trace.program, peer)
    call.values["src"] = peer.src
    done = call.emit(
        "gpsimd" if way == DmaEngine.gpsimd_dma else "dma",
        send_to_rank=send_to,
        recv_from_rank=source,
        pipe_id=pipe_id,
        dma_engine=way.name,
    )
    trace.meet(f"{meeting}, received")  # only after this may a core change its src
    return done


def _check_two_cores(call: Request) -> None:
    programs = prod(tracing.current().grid)
    if programs != len(CORES):
        call.refuse(f"a launch of {programs} programs", "launch it as kernel[2]")


def _check_alike(call: Request, name: str, src: NkiTensor) -> None:
    dst = call.values["dst"]
    if src.shape != dst.shape or src.dtype != dst.dtype:
        call.refuse(
            f"{name} is {src.dtype}{list(src.shape)}, dst {dst.dtype}{list(dst.shape)}",
            "give equal shapes and dtypes",
        )


def _check_gpsimd(call: Request, src: NkiTensor) -> None:
    size = dtypes.itemsize(src.dtype)
    row = prod(src.shape[1:]) * size
    if row > GPSIMD_LIMITS[size]:
        call.refuse(
            f"{row} bytes per partition of {src.dtype} by gpsimd_dma",
            f"use at most {GPSIMD_LIMITS[size]} ({GPSIMD_LIMITS[size] // size} "
            "elements), or dma_engine.dma",
        )


def _check_pair(call: Request, program: int, peer: _Post) -> None:
    source = call.values["recv_from_rank"]
    if peer.send_to != program:
        call.refuse(
            f"core {program} receives from core {source}, which sends to core "
            f"{peer.send_to}",
            "let send_to_rank of each core name the core that receives from it",
        )
    _check_alike(call, f"src of core {source}", peer.src)


def _overlap(a: Access, b: Access) -> bool:
    if a.storage is not b.storage or a.dynamic or b.dynamic:
        return False
    first, second = (relative_elements(v.pattern) + v.offset for v in (a, b))
    return bool(np.isin(first, second).any())
