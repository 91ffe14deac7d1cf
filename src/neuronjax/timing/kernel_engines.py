"""Which engine executes what a kernel leaves open: VectorE or ScalarE.

The compiler decides where `engine=` is not given. For trn2 it shares copies out of PSUM
between both (bmm v2 of kda-for-trainium: 4,170 instructions of VectorE and 4,133 of
ScalarE, of which 4,224 are such copies). ASSUMPTION: each instruction in turn goes to
the engine that has less to do in all, what is bound to one of them counted first. For
trn1 ScalarE has them all: VectorE is idle in bmm, and of AdamW, SiLU and two kernels
with RMSNorm ScalarE's counter is what all of them make, to a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuronjax.ir.kernel import KernelInstruction, Storage
from neuronjax.timing.engines.task import has
from neuronjax.timing.kernel_cost import Prices
from neuronjax.timing.kernel_price import KernelPrice
from neuronjax.timing.work import Work

#: Of an instruction that is left out.
_NOTHING = KernelPrice(
    queue="tensor",
    source=Work(queue="tensor", seconds=0.0, opcode="NONE"),
    seconds=0.0,
    latency_seconds=0.0,
)
#: What an activation does too: func(data * scale + bias).
_AFFINE = frozenset({"multiply", "add", "subtract"})


def on_engines(
    entries: Sequence[KernelInstruction],
    counts: Sequence[int],
    prices: Prices,
    *,
    older: bool = False,
) -> list[KernelPrice]:
    """Prices of a stream's instructions, each on the engine that it runs on.

    Args:
        entries: in the order of the kernel.
        counts: how often each happens.
        prices: of one core.
        older: whether the kernel is of the older style.
    """
    priced = [prices.price(i) for i in entries]
    if older:
        for n in _first_of_sums(entries):
            priced[n] = _NOTHING
    shared = has(prices.core, "vector_perf_modes")  # from NeuronCore-v3 on
    load: dict[tuple[int, str], float] = {}
    movable = []
    moved: dict[int, KernelPrice] = {}
    for n, (i, p, count) in enumerate(zip(entries, priced, counts, strict=True)):
        if p.queue == "vector" and _may_move(i):
            movable.append(n)
        elif p.queue in ("vector", "scalar"):
            key = (i.program, p.queue)
            load[key] = load.get(key, 0.0) + p.seconds * count
    for n in movable:
        i, stays = entries[n], priced[n]
        moves = moved.get(id(stays))  # equal instructions have one price
        if moves is None:
            moves = prices.price(replace(i, engine="scalar"))
            moved[id(stays)] = moves
        mine, other = (i.program, "vector"), (i.program, "scalar")
        here = load.get(mine, 0.0) + stays.seconds * counts[n]
        there = load.get(other, 0.0) + moves.seconds * counts[n]
        if there < here or not shared:
            priced[n], load[other] = moves, there
        else:
            load[mine] = here
    return priced


def _first_of_sums(entries: Sequence[KernelInstruction]) -> list[int]:
    """Zeros in PSUM that TensorE adds to: its first product overwrites instead.

    `nl.zeros(..., buffer=nl.psum)` and `+=` are how the older style says a sum.
    """
    found, zeroed = [], dict[Storage, int]()
    for n, i in enumerate(entries):
        for access in i.accesses if zeroed else ():
            before = zeroed.pop(access.storage, None)
            if before is not None and i.engine == "tensor":
                found.append(before)
        if i.name == "memset" and not any(i.parameters):
            (target,) = i.outputs
            if target.storage.memory == "psum":
                zeroed[target.storage] = n
    return found


def _may_move(i: KernelInstruction) -> bool:
    """Whether ScalarE has it: copies, and a product or a sum with a number."""
    if not i.is_open:
        return False
    if i.name == "tensor_copy":
        return True
    operators = {i.attributes.get("op0"), i.attributes.get("op1")} - {None}
    return i.name == "tensor_scalar" and operators <= _AFFINE
