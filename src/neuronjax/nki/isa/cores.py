"""Between the two NeuronCores of a logical one: `core_barrier`, `sendrecv`.

The cores are the programs of a launch `kernel[2](...)`. Both have to meet in the same
order; see `lockstep` and `linking`.
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
from neuronjax.nki.isa.operands import name_of, refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

CORES = (0, 1)
ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
# Bytes per partition that GpSimd's own DMA moves, by bytes of an element (nki.isa).
GPSIMD_LIMITS = {4: 1024, 2: 512, 1: 256}


def core_barrier(
    data: NkiTensor,
    cores: Any,
    engine: Any = Engine.gpsimd,
    name: str | None = None,
) -> NkiInstruction:
    """Both cores go on when both have come here.

    Their data is documented to be in shared HBM. Kernels of the vendor's library give
    an SBUF tile too, so that is accepted.
    """
    op = "core_barrier"
    named = (cores,) if isinstance(cores, int) else tuple(cores)
    alone = prod(tracing.current().grid) == 1 and named == (0,)
    if not alone:
        _check_two_cores(op)
    request = Request(op, locals())
    unknown = engine is None or engine == Engine.unknown
    by = "gpsimd" if unknown else name_of(op, "engine", engine, ENGINES)
    if not alone:
        if named != CORES:
            refuse(op, f"cores={cores}", f"use cores={CORES}")
        tracing.current().meet(f"nisa.{op}")
    return request.emit(by, cores=named)


class _Post(NamedTuple):
    """What a core tells the other one."""

    src: NkiTensor
    send_to: int
    receive_from: int


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = DmaEngine.dma,
    name: str | None = None,
) -> NkiInstruction:
    """Sends a tile to a core, and receives one of the same shape."""
    op = "sendrecv"
    _check_two_cores(op)
    request = Request(op, locals())
    for what, value in (("send_to", send_to_rank), ("recv_from", recv_from_rank)):
        if value not in CORES:
            refuse(op, f"{what}_rank={value}", "use 0 or 1")
    _check_alike(dst, "src", src)
    way = DmaEngine(dma_engine)
    if way == DmaEngine.gpsimd_dma:
        _check_gpsimd(src)
    if _overlap(src.access(), dst.access()):
        refuse(
            op,
            "src and dst have elements in common, which are sent and received at once",
            "receive into another tile",
        )
    trace, meeting = tracing.current(), f"nisa.{op}(pipe_id={pipe_id})"
    posts = trace.meet(meeting, _Post(src, send_to_rank, recv_from_rank))
    peer = posts[recv_from_rank]
    _check_pair(trace.program, recv_from_rank, peer, dst)
    request.values["src"] = peer.src
    done = request.emit(
        "gpsimd" if way == DmaEngine.gpsimd_dma else "dma",
        send_to_rank=send_to_rank,
        recv_from_rank=recv_from_rank,
        pipe_id=pipe_id,
        dma_engine=way.name,
    )
    trace.meet(f"{meeting}, received")  # before that no core may change its src
    return done


def _check_two_cores(op: str) -> None:
    trace = tracing.current()
    if 2 not in trace.target.chip.lnc_options:
        refuse(op, f"{trace.core.name} has no logical cores of two", "use trn2 or trn3")
    if prod(trace.grid) != len(CORES):
        refuse(op, f"a launch of {prod(trace.grid)} programs", "launch it as kernel[2]")


def _check_alike(dst: NkiTensor, name: str, src: NkiTensor) -> None:
    if src.shape != dst.shape or src.dtype != dst.dtype:
        refuse(
            "sendrecv",
            f"{name} is {src.dtype}{list(src.shape)}, dst {dst.dtype}{list(dst.shape)}",
            "give equal shapes and dtypes",
        )


def _check_gpsimd(src: NkiTensor) -> None:
    size = dtypes.itemsize(src.dtype)
    row = prod(src.shape[1:]) * size
    if row > GPSIMD_LIMITS[size]:
        refuse(
            "sendrecv",
            f"{row} bytes per partition of {src.dtype} by gpsimd_dma",
            f"at most {GPSIMD_LIMITS[size]} ({GPSIMD_LIMITS[size] // size} elements), "
            "or dma_engine.dma",
        )


def _check_pair(program: int, source: int, peer: _Post, dst: NkiTensor) -> None:
    """The core that this one receives from sends to it, and what it expects."""
    if peer.send_to != program:
        refuse(
            "sendrecv",
            f"core {program} receives from core {source}, which sends to core "
            f"{peer.send_to}",
            "let send_to_rank of each core be the one that receives from it",
        )
    _check_alike(dst, f"src of core {source}", peer.src)


def _overlap(a: Access, b: Access) -> bool:
    """Whether two views share an element."""
    if a.storage is not b.storage or a.dynamic or b.dynamic:
        return False
    first, second = (relative_elements(v.pattern) + v.offset for v in (a, b))
    return bool(np.isin(first, second).any())
