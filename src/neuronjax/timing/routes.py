"""The wires of a message between two chips of a node, and the rates of wires.

In a torus, a chain or a ring, a message moves along one axis after the other, in the
shorter direction; if both directions are equally long, each carries half of the message
(ASSUMPTION; with one direction an all-reduce on trn1 would be slower than measured). In
a switch a message takes the cable of the source, then the cable of the destination. A
wire is (chip, link, direction), where link is an index into `Topology.links`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from neuronjax.hardware import Topology
from neuronjax.ir.collectives.algorithms import closed_paths
from neuronjax.ir.collectives.placement import Group

Wire = tuple[int, int, int]
#: The wires of a message, each with the part of the message that takes the wire.
Route = tuple[tuple[Wire, float], ...]
_LARGEST_SEARCH = 16  # most chips for which a closed path is searched


class Routes:
    """The routes over the wires of one topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._route = _switched if topology.kind == "switch" else _along_axes
        self._known: dict[tuple[int, int], Route] = {}

    def between(self, source: int, destination: int) -> Route:
        """Return the route of a message between two chips of a node."""
        ends = (source, destination)
        if ends not in self._known:
            self._known[ends] = tuple(self._route(self.topology, *ends))
        return self._known[ends]

    def bytes_per_second(self, wire: Wire) -> float:
        """Return the rate of a wire. In a switch, all cables of a chip that belong to
        one `Link` count as one wire."""
        link = self.topology.links[wire[1]]
        cables = link.per_chip if self.topology.kind == "switch" else 1
        return cables * link.bytes_per_second

    def slowest(self, flows: Mapping[tuple[int, int], float]) -> float:
        """Return the seconds for which simultaneous messages occupy the busiest wire;
        `flows` has the bytes of each message, by (source, destination)."""
        load: dict[Wire, float] = {}
        for ends, size in flows.items():
            for wire, part in self.between(*ends):
                load[wire] = load.get(wire, 0.0) + part * size
        seconds = (size / self.bytes_per_second(w) for w, size in load.items())
        return max(seconds, default=0.0)


@functools.lru_cache(maxsize=64)
def routes_of(topology: Topology) -> Routes:
    """Return the `Routes` of a topology, which are computed once per topology."""
    return Routes(topology)


def _along_axes(
    topology: Topology, source: int, destination: int
) -> Iterator[tuple[Wire, float]]:
    """Yield the wires of the route between two chips, axis after axis. Each is paired
    with the fraction of the message that it carries."""
    start, end = place_of(topology, source), place_of(topology, destination)
    links = {link.axis: i for i, link in reversed([*enumerate(topology.links)])}
    at = list(start)
    for axis, (a, b) in enumerate(zip(start, end, strict=True)):
        for direction, hops, part in _ways(topology, axis, a, b):
            for hop in range(hops):
                at[axis] = (a + direction * hop) % topology.shape[axis]
                yield (_number(topology, at), links[axis], direction), part
        at[axis] = b


def _ways(
    topology: Topology, axis: int, a: int, b: int
) -> list[tuple[int, int, float]]:
    """Return how a message moves along `axis` from coordinate `a` to `b`: (direction,
    number of hops, fraction of the message) for each direction that is used."""
    size = topology.shape[axis]
    if not topology.closed[axis]:
        return [(1 if b > a else -1, abs(b - a), 1.0)]
    forward, backward = (b - a) % size, (a - b) % size
    if forward == backward and forward:
        return [(1, forward, 0.5), (-1, backward, 0.5)]
    return [(1, forward, 1.0) if forward < backward else (-1, backward, 1.0)]


def place_of(topology: Topology, chip: int) -> tuple[int, ...]:
    """Return the coordinates of a chip along the axes of `topology.shape`."""
    return tuple(map(int, np.unravel_index(chip, topology.shape)))


def _number(topology: Topology, place: Sequence[int]) -> int:
    return int(np.ravel_multi_index(tuple(place), topology.shape))


def _switched(
    topology: Topology, source: int, destination: int
) -> Iterator[tuple[Wire, float]]:
    """Yield the wires of the route, through switches, between two chips. Each is paired
    with 1.0, since it carries the whole message.

    ASSUMPTION: to another rack a message first takes the direct cable to the chip in
    the same position of that rack, and continues from there."""
    if source == destination:
        return
    (server, chip), (other, _) = (place_of(topology, c) for c in (source, destination))
    per_rack = topology.shape[0] // topology.racks
    if server // per_rack != other // per_rack:
        beside = other // per_rack * per_rack + server % per_rack
        entry = _number(topology, (beside, chip))
        yield from _cable(source, entry, 1)
        yield from _switched(topology, entry, destination)
    else:
        yield from _cable(source, destination, 0 if server != other else 2)


def _cable(source: int, destination: int, link: int) -> Iterator[tuple[Wire, float]]:
    yield (source, link, 1), 1.0
    yield (destination, link, -1), 1.0


@functools.lru_cache(maxsize=256)
def channels(topology: Topology, group: Group) -> tuple[tuple[int, ...], ...]:
    """Return, for each channel of a ring algorithm, the group's chips in the order in
    which data passes them; () if the group is on one chip.

    A group of all chips of a 4 x 4 torus, of a 4 x 4 x 4 torus, or of one plane of the
    latter has four channels; other groups have two, in opposite directions (vendor's
    `collective_permute_implicit`)."""
    first = {ranks[0]: group.locals[ranks[0]] for ranks in group.by_chip}
    if len(first) == 1:
        return ()
    chips = tuple(local // group.ranks_per_chip for local in first.values())
    if group.torus == (4, 4, 4) and len(chips) == math.prod(group.torus):
        found = _through_planes(_cycles_of_plane(group), topology.shape[0])
        return tuple(way for cycle in found for way in (cycle, cycle[::-1]))
    paths = closed_paths(group.among(first), range(len(first)))
    if len(paths) > 2:
        return tuple(tuple(chips[rank] for rank in path) for path in paths)
    path = _closed(topology, chips)
    return path, path[::-1]


def _cycles_of_plane(group: Group) -> list[tuple[int, ...]]:
    """Return two cycles over chips 0 to 15 that share no wire."""
    ranks = [ranks[0] for ranks in group.by_chip]
    plane = sorted(ranks, key=lambda r: group.locals[r])[:16]
    forward, _, _, other = closed_paths(group.among(plane), range(16))
    return [forward, other]


def _through_planes(
    cycles: Sequence[tuple[int, ...]], planes: int
) -> list[tuple[int, ...]]:
    """Return, for each of two cycles through a plane (4 x 4 chips), a path through all
    `planes` planes of a torus. On each plane it uses all wires of the cycle but one,
    forwards on even planes and backwards on odd planes.

    ASSUMPTION: the vendor's rings in an UltraServer, which are not published, take such
    paths. The two share no wire, because they change planes at different chips."""
    ends = {cycles[0][0], cycles[0][-1]}
    second = cycles[1]
    while ends & {second[0], second[-1]}:
        second = (*second[1:], second[0])
    return [
        tuple(
            plane * len(cycle) + chip
            for plane in range(planes)
            for chip in (cycle if plane % 2 == 0 else cycle[::-1])
        )
        for cycle in (cycles[0], second)
    ]


@functools.lru_cache(maxsize=256)
def _closed(topology: Topology, chips: tuple[int, ...]) -> tuple[int, ...]:
    """Return the chips in the order of a closed path along wires; `chips` itself if no
    such path is found."""
    # Along a closed path two colours alternate, as on a chessboard, so they are equally
    # frequent.
    colours = [sum(place_of(topology, chip)) % 2 for chip in chips]
    is_even = 2 * sum(colours) == len(chips)
    if len(chips) > _LARGEST_SEARCH or topology.kind == "switch" or not is_even:
        return chips
    beside = {
        (a, b)
        for a, b in itertools.permutations(chips, 2)
        if len(routes_of(topology).between(a, b)) == 1
    }
    return next(_extended(chips[:1], frozenset(chips[1:]), beside), chips)


def _extended(
    path: tuple[int, ...], left: frozenset[int], beside: set[tuple[int, int]]
) -> Iterator[tuple[int, ...]]:
    """Yield the closed paths that continue `path` through each chip of `left` once."""
    if not left and (path[-1], path[0]) in beside:
        yield path
    for chip in sorted(left):
        if (path[-1], chip) in beside:
            yield from _extended((*path, chip), left - {chip}, beside)
