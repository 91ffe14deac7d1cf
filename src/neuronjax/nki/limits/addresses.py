"""Checks of a program's size in SBUF and PSUM, and of addresses that the user fixed.

Bytes are counted in one partition. A storage occupies one, two or four quadrants of 32
partitions. A program is refused only if no allocation exists: if the live storages at
one point exceed the memory. No addresses are chosen. Every core of a grid has its own
memories.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import CoreSpec, resolve_target
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import KernelProgram, Storage
from neuronjax.nki.limits.live_ranges import LiveRanges, Segment, live_ranges

QUADRANT, QUADRANTS = 32, 4
SHOWN = 5
# A storage's number has the program's number in its higher bits, see `nki.trace`.
PROGRAM_BITS = 24


class SpillWarning(UserWarning):
    """A warning that live tensors exceed an on-chip memory, so some are moved out.

    Values do not change; the predicted time excludes these transfers."""


class _PlacedTile(NamedTuple):
    storage: Storage
    nbytes: int
    quadrants: int
    lives: list[Segment]

    @property
    def area(self) -> int:
        return self.nbytes * self.quadrants


def peak_bytes(
    program: KernelProgram,
    core: CoreSpec | None = None,
    spills: bool = False,
    memories: Sequence[str] = ("sbuf", "psum"),
) -> dict[str, float]:
    """Return the most bytes of a partition that are in use at once, by memory.

    The figures of a grid are those of the fullest core.

    Args:
        core: by default the core of the program's target.
        spills: whether the compiler moves out what does not fit, with a `SpillWarning`;
            the operands of one instruction must still fit.

    Raises:
        InvalidProgramError: live storages exceed a memory, a fixed address is out of
            range, or two storages that are alive at once have overlapping fixed
            addresses.
    """
    core = core or resolve_target(program.target).core
    lives = live_ranges(program)
    groups: dict[tuple[int, str], list[_PlacedTile]] = defaultdict(list)
    for storage, segments in lives.segments.items():
        if storage.memory in memories:
            key = (storage.number >> PROGRAM_BITS, storage.memory)
            groups[key].append(_tile(storage, segments))
    peaks = dict.fromkeys(memories, 0.0)
    for (_, memory), tiles in groups.items():
        limit = capacity(core, memory)
        _check_addresses(tiles, limit, lives)
        peak = _check_capacity(tiles, limit, program, lives, spills)
        peaks[memory] = max(peaks[memory], peak)
    return peaks


def capacity(core: CoreSpec, memory: str) -> int:
    """Return how many bytes of a partition a program may use."""
    if memory == "sbuf":
        return core.sbuf_usable_bytes_per_partition
    return core.psum_bytes // core.partitions


def _tile(storage: Storage, segments: list[Segment]) -> _PlacedTile:
    nbytes = storage.free_size * dtypes.itemsize(storage.dtype)
    quadrants = -(-storage.shape[0] // QUADRANT)
    return _PlacedTile(storage, nbytes, 4 if quadrants == 3 else quadrants, segments)


def _check_capacity(
    tiles: list[_PlacedTile],
    limit: int,
    program: KernelProgram,
    lives: LiveRanges,
    spills: bool,
) -> float:
    """Return the peak in bytes per partition, after checking it against the limit."""
    changes: dict[int, int] = defaultdict(int)
    for tile in tiles:
        for first, last in tile.lives:
            changes[first] += tile.area
            changes[last + 1] -= tile.area
    alive, peak, worst = 0, 0, 0
    for position in sorted(changes):
        alive += changes[position]
        if alive > peak:
            peak, worst = alive, position
    if peak <= limit * QUADRANTS:
        return peak / QUADRANTS
    error = _too_much(tiles, limit, peak / QUADRANTS, worst, program, lives)
    if not spills or _most_at_one_instruction(tiles, lives) > limit * QUADRANTS:
        raise error
    warnings.warn(f"moved to a larger memory: {error}", SpillWarning, stacklevel=2)
    return peak / QUADRANTS


def _most_at_one_instruction(tiles: list[_PlacedTile], lives: LiveRanges) -> int:
    """Return the largest total of one instruction's operands, which cannot spill."""
    areas = {tile.storage: tile.area for tile in tiles}
    return max(
        sum(areas.get(storage, 0) for storage in {a.storage for a in i.accesses})
        for i in lives.instructions
    )


def _too_much(
    tiles: Iterable[_PlacedTile],
    limit: int,
    peak: float,
    worst: int,
    program: KernelProgram,
    lives: LiveRanges,
) -> InvalidProgramError:
    alive = [t for t in tiles if any(a <= worst <= b for a, b in t.lives)]
    alive.sort(key=lambda t: (-t.area, t.storage.number))
    memory = alive[0].storage.memory
    lines = [f"  {_described(t)}" for t in alive[:SHOWN]]
    rest = sum(t.area for t in alive[SHOWN:]) / QUADRANTS
    if rest:
        lines.append(f"  and {len(alive) - SHOWN} more, {rest:,.0f} bytes")
    at = lives.instructions[min(worst, len(lives.instructions) - 1)].location
    banks = ", 8 banks of 2,048 bytes" if memory == "psum" else ""
    return InvalidProgramError(
        f"{peak:,.0f} bytes per partition of {memory.upper()} are in use at once, of "
        f"{limit:,}{banks}; the largest:\n" + "\n".join(lines),
        op=f"kernel {program.name}",
        location=at,
        remedy="use smaller tiles or a narrower dtype; allocate tiles in the loop that "
        "uses them, so that each iteration reuses their memory; write results earlier",
    )


def _described(tile: _PlacedTile) -> str:
    storage = tile.storage
    name = f" {storage.name!r}" if storage.name else ""
    shape = f"{storage.dtype}{list(storage.shape)}"
    return f"{tile.nbytes:,} bytes: {shape}{name}, {storage.location}"


def _check_addresses(tiles: list[_PlacedTile], limit: int, lives: LiveRanges) -> None:
    fixed = [t for t in tiles if t.storage.address is not None]
    for tile in fixed:
        _, first = _fixed(tile)
        if first < 0 or first + tile.nbytes > limit:
            raise InvalidProgramError(
                f"bytes {first:,} to {first + tile.nbytes - 1:,} of a partition of "
                f"{tile.storage.memory.upper()}, of which {limit:,} are usable",
                op="ndarray",
                location=tile.storage.location,
                remedy=f"use an address of at most {max(limit - tile.nbytes, 0):,}",
            )
    ordered = sorted(
        ((segment, tile) for tile in fixed for segment in tile.lives),
        key=lambda pair: (pair[0], pair[1].storage.number),
    )
    active: list[tuple[Segment, _PlacedTile]] = []
    for segment, tile in ordered:
        active = [(s, t) for s, t in active if s[1] >= segment[0]]
        for other_segment, other in active:
            # An instruction may write a tile over one that it reads.
            touches = other_segment[1] == segment[0]
            if other.storage is not tile.storage and not touches and _meet(tile, other):
                raise _overlap(tile, other, segment[0], lives)
        active.append((segment, tile))


def _meet(a: _PlacedTile, b: _PlacedTile) -> bool:
    (p, x), (q, y) = _fixed(a), _fixed(b)
    rows = p < q + b.storage.shape[0] and q < p + a.storage.shape[0]
    return rows and x < y + b.nbytes and y < x + a.nbytes


def _fixed(tile: _PlacedTile) -> tuple[int, int]:
    assert tile.storage.address is not None
    return tile.storage.address


def _overlap(
    tile: _PlacedTile, other: _PlacedTile, position: int, lives: LiveRanges
) -> InvalidProgramError:
    last = next(b for a, b in other.lives if a <= position <= b)
    reader = lives.instructions[min(last, len(lives.instructions) - 1)]
    return InvalidProgramError(
        f"{_described(tile)} at address {_fixed(tile)} overwrites\n  "
        f"{_described(other)} at address {_fixed(other)}\n  which is used until "
        f"{reader.location}",
        op="ndarray",
        location=lives.instructions[position].location,
        remedy="use addresses that do not overlap, or leave address= out",
    )
