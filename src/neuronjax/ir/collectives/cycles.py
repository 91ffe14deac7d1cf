"""The closed paths along which rings send: one for every channel of a ring.

Channels share no wire in one direction, so they run at the same time, each with its
part of the data. On a 4 x 4 torus two cycles have no wire in common, and each can be
travelled both ways: four channels if the group has all chips, else two (vendor's
`collective_permute_implicit`; that KangaRing has two cycles then, on which the ranks of
a chip swap their roles: intranode-collective-comm.rst).
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronjax.ir.collectives.placement import Group

MAX_CHANNELS = 4

# Over the wires of trn2's 4 x 4 torus, chip 4 row + column. ASSUMPTION: these two, of
# several pairs; the same on trn1, whose wiring is not published.
_SIDES = (4, 4)
_CYCLES = (
    (0, 12, 8, 4, 7, 3, 15, 11, 10, 6, 2, 14, 13, 9, 5, 1),
    (0, 4, 5, 6, 7, 11, 8, 9, 10, 14, 15, 12, 13, 1, 2, 3),
)


def closed_paths(group: Group, otherwise: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The ranks of a group in the order of each channel.

    Every second channel goes backwards, so that on a chip other ranks come first.

    Args:
        group: where the ranks lie.
        otherwise: the ranks in order, for a group that does not have all chips of a
            4 x 4 torus. ASSUMPTION: whatever the wires, there and back.
    """
    wired = _along_wires(group)
    if not wired:
        return tuple(otherwise), tuple(otherwise)[::-1]
    a, b = wired
    return a, b[::-1], a[::-1], b


def _along_wires(group: Group) -> tuple[tuple[int, ...], ...]:
    """The cycles of the torus that the chips of the group make up, if they do."""
    if group.torus[-2:] != _SIDES or len(group.by_node) > 1:
        return ()
    chips = len(_CYCLES[0])
    of_chip = {
        group.locals[ranks[0]] // group.ranks_per_chip: ranks for ranks in group.by_chip
    }
    planes = {chip // chips for chip in of_chip}
    if len(of_chip) < chips or len(planes) > 1:
        return ()
    first = planes.pop() * chips
    return tuple(
        tuple(rank for chip in cycle for rank in of_chip[first + chip])
        for cycle in _CYCLES
    )
