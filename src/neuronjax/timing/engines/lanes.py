"""Seconds of tasks (`LaneTask`) on VectorE, ScalarE and GpSimdE.

An instruction occupies its engine for the cycles in which its elements pass the data
path, plus the cycles to start one access to SBUF or PSUM (its other accesses start
during the previous instruction), but for at least MINIMUM_INTERVAL cycles. On GpSimdE
the start of an instruction takes the place of the start of an access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, inf
from types import MappingProxyType
from typing import Any

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines import gpsimd, scalar, vector
from neuronjax.timing.engines.task import LaneTask, Pace, has
from neuronjax.timing.work import Core, Queue, Work

_PACES: Mapping[Queue, Callable[[LaneTask, Core], Pace]] = MappingProxyType(
    {
        "vector": lambda task, core: vector.RULES[task.name](task, core),
        "scalar": scalar.pace,
        "gpsimd": gpsimd.pace,
    }
)
#: Functions of nki.isa for which `pace` has a rule.
PRICED = vector.RULES.keys() | scalar.ACTIVATIONS | gpsimd.NAMES
#: Name in nki.isa -> opcode in the vendor's profiler, if `_opcode` has no other rule.
_OPCODES: Mapping[str, str] = MappingProxyType(
    {
        "nc_stream_shuffle": "SHUFFLE",
        "nc_transpose": "TRANSPOSE",
        "nc_find_index8": "FIND_INDEX8",
        "nc_match_replace8": "MATCH_REPLACE8",
        "tensor_scalar_cumulative": "TENSOR_SCALAR",
        "tensor_scalar_reduce": "TENSOR_SCALAR",
        "tensor_tensor_scan": "SCAN",
        "tensor_reduce": "REDUCE",
        "tensor_partition_reduce": "PARTITION_REDUCE",
        **dict.fromkeys(vector.RANDOM, "RNG"),
    }
)
# In NeuronCore-v2, VectorE and GpSimdE take turns to access SBUF, and VectorE and
# ScalarE take turns to access PSUM [A2]; later cores have enough ports for all [A3].
_SHARED = {"vector": ("psum", "sbuf"), "scalar": ("psum",), "gpsimd": ("sbuf",)}


def clock(core: Core, queue: Queue) -> int:
    """Return the cycles per second of an engine; 0 if the core lacks it."""
    engine = getattr(core.spec, queue)
    return engine.clock_hz if engine is not None else 0


def pace(task: LaneTask, core: Core) -> Pace:
    """Return the cycles in which a task's elements pass its engine's data path; starts
    of accesses are not included."""
    if task.name == "memset":  # the same formula on every engine [V26]
        return vector.RULES["memset"](task, core)
    return _PACES[task.queue](task, core)


def lane_work(
    core: Core, *tasks: LaneTask, tiles: int = 1, times: float = 1, **more: Any
) -> Work:
    """Return the `Work` of one engine that runs all `tasks`, `times` times. A task is
    one instruction on each of `tiles` tiles; its sizes are those of all tiles together.

    The last task decides the engine, the opcode, the table and the performance mode.
    `more` are further fields of the `Work`."""
    last, paces = tasks[-1], [pace(task, core) for task in tasks]
    speed = paces[-1].speed
    needs_table = last.queue == "scalar" and last.function not in scalar.IN_EVERY_TABLE
    fields: dict[str, Any] = {
        "tiles": tiles,
        "opcode": _opcode(last),
        "performance_mode": f"{speed}x" if speed > 1 else "",
        "table": last.function if needs_table else "",
        **more,
    }
    return engine_work(
        core,
        last.queue,
        sum(p.cycles for p in paces) * times,
        ceil(tiles * len(tasks) * times),
        least=paces[-1].least,
        **fields,
    )


def _opcode(task: LaneTask) -> str:
    if task.queue == "scalar" and task.name != "memset":
        return "ACTIVATE"
    return _OPCODES.get(task.name, task.name.upper())


def engine_work(
    core: Core,
    queue: Queue,
    cycles: float,
    starts: int,
    *,
    least: float = a.MINIMUM_INTERVAL.value,
    **fields: Any,
) -> Work:
    """Return the `Work` of `starts` instructions on the engine `queue`. The elements of
    all of them pass the data path in `cycles` cycles; each instruction, with its start,
    takes at least `least` cycles. The time is infinite if the core lacks the engine.
    `fields` are further fields of the `Work`."""
    start = a.GPSIMD_START.value
    if queue != "gpsimd":
        start = a.VISIBLE_STARTS.value * core.spec.access_start_cycles
    busy, rate = max(least * starts, cycles + start * starts), clock(core, queue)
    return Work(
        queue=queue,
        seconds=busy / rate if rate else inf,
        latency_seconds=latency_seconds(core, queue),
        **fields,
    )


def latency_seconds(core: Core, queue: Queue) -> float:
    """Return the time from the end of an instruction until its result can be read."""
    hidden = 2 - a.VISIBLE_STARTS.value  # 2 starts: a read, a write
    cycles = a.STATIC_OVERHEAD.value + hidden * core.spec.access_start_cycles
    return cycles / (clock(core, queue) or inf)


def shared_ports(work: Work, core: Core) -> tuple[str, ...]:
    """Return the memories ("psum", "sbuf") that another engine cannot access during
    `work`. There are none if the core has enough ports for all engines."""
    if has(core, "parallel_sbuf_ports"):
        return ()
    in_psum = work.psum_read_bytes or work.psum_write_bytes
    in_sbuf = work.sbuf_read_bytes or work.sbuf_write_bytes
    used = {"psum": in_psum, "sbuf": in_sbuf}
    return tuple(m for m in _SHARED.get(work.queue, ()) if used[m])
