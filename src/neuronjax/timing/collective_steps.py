"""Steps of collectives: the bytes that move between chips and within ranks.

A collective is a list of consecutive `CollectiveStep`s. Its *size* is the bytes of a
rank's operand or of a rank's result, whichever is larger, as in nccom-test. All bytes
in this file are fractions of this size. The steps of a reduce-scatter follow its
`FoldPlan` (which rank adds what), except for the algorithm "mesh" on trn1
(`Topology.mesh`), which needs one step. An all-gather has the corresponding steps in
reverse order. An all-reduce is a reduce-scatter and then an all-gather. Sources of the
algorithms: intranode-collective-comm.rst [IN] and internode-collective-comm.rst [IX].
An addition of two operands runs at half the rate of a copy, since DMA engines read both
operands (trainium3_arch.rst). A rank reads the data of other ranks of its chip in
place.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from neuronjax.errors import InternalError
from neuronjax.hardware import Topology
from neuronjax.ir.collectives.placement import Group
from neuronjax.timing.routes import channels, place_of

Flows = dict[tuple[int, int], float]


@dataclass(frozen=True)
class CollectiveStep:
    """Equal steps of a collective, over one group or several groups of ranks.

    Bytes are those of one step, as fractions of the collective's size.

    Attributes:
        count: the number of equal steps, one after the other.
        dma: the bytes that one rank's DMA engines move: the bytes of its copies and,
            for additions, the bytes of all operands.
        sent: the bytes that one rank sends to other ranks.
        flows: the bytes from one chip to another, by (source chip, destination chip);
            chips are numbered over all nodes.
        senders: by chip, the number of ranks on the chip that take part.
        channels: the number of DMA rings of each rank, which work in parallel.
        is_sliced: whether the data is cut into slices, so that all steps of the
            collective run at the same time, each on another slice.
    """

    count: int
    dma: float
    sent: float = 0.0
    flows: Flows = field(default_factory=dict)
    senders: Mapping[int, int] = field(default_factory=dict)
    channels: int = 1
    is_sliced: bool = False


def merged(groups: Sequence[Sequence[CollectiveStep]]) -> tuple[CollectiveStep, ...]:
    """Return the steps of several groups of ranks that run one algorithm at the same
    time. `groups` has the steps of each group; step n of the result is the n-th step of
    all groups together."""
    return tuple(_together(steps) for steps in zip(*groups, strict=True))


def at_once(steps: Sequence[CollectiveStep]) -> CollectiveStep:
    """Return one step that stands for all `steps`, which run at the same time on
    different slices of the data: its `dma` and `flows` are the sums over all steps."""
    dma = sum(step.count * step.dma for step in steps)
    flows = _all_flows((step, step.count) for step in steps)
    return replace(steps[0], count=1, dma=dma, flows=flows)


def _together(steps: Sequence[CollectiveStep]) -> CollectiveStep:
    senders: Counter[int] = Counter()
    for step in steps:
        senders.update(step.senders)
    return replace(
        steps[0],
        dma=max(step.dma for step in steps),
        sent=max(step.sent for step in steps),
        flows=_all_flows((step, 1) for step in steps),
        senders=dict(senders),
        channels=min(step.channels for step in steps),
    )


def _all_flows(steps: Iterable[tuple[CollectiveStep, int]]) -> Flows:
    flows: defaultdict[tuple[int, int], float] = defaultdict(float)
    for step, times in steps:
        for ends, size in step.flows.items():
            flows[ends] += times * size
    return dict(flows)


def _scaled(steps: Sequence[CollectiveStep], part: float) -> list[CollectiveStep]:
    return [
        replace(
            step,
            dma=step.dma * part,
            sent=step.sent * part,
            flows={ends: size * part for ends, size in step.flows.items()},
        )
        for step in steps
    ]


# -- one group -------------------------------------------------------------------------


class _GroupSite:
    """A group of ranks, with the properties of its chips that algorithms use.

    If `first_only` is set, flows from other chips than the first one are left out: over
    EFA every chip sends as many bytes as the first."""

    def __init__(
        self, group: Group, topology: Topology, *, first_only: bool = False
    ) -> None:
        self.group = group
        self.topology = topology
        self.ranks = group.size
        self.chunk = 1 / group.size
        self.on_chip = {group.chips[ranks[0]]: len(ranks) for ranks in group.by_chip}
        self.chips = tuple(self.on_chip)
        self.acting = dict.fromkeys(self.chips[:1] if first_only else self.chips)
        self.per_chip = max(self.on_chip.values())

    @functools.cached_property
    def labels(self) -> dict[int, int]:
        """Return, by chip, the number of the chip in a hypercube, in which chips are
        neighbours if their numbers differ in one bit.

        Along each axis of the torus, chips are numbered in Gray code, so that
        neighbours in the torus are neighbours in the hypercube (ASSUMPTION; in [IN] a
        torus of 4 x 4 is a hypercube of four axes). This needs a group in one node that
        is a box with 2^n chips per axis; chips of other groups are numbered in order.
        """
        per_node = math.prod(self.topology.shape)
        places = [place_of(self.topology, chip % per_node) for chip in self.chips]
        values = [sorted(set(axis)) for axis in zip(*places, strict=True)]
        whole = all(len(v) & (len(v) - 1) == 0 for v in values)
        boxed = math.prod(map(len, values)) == len(self.chips)
        if len(self.group.by_node) > 1 or not (whole and boxed):
            return {chip: number for number, chip in enumerate(self.chips)}
        pairs = zip(self.chips, places, strict=True)
        return {chip: _gray_number(place, values) for chip, place in pairs}

    def step(
        self, dma: float, sent: float = 0.0, flows: Flows | None = None, count: int = 1
    ) -> CollectiveStep:
        return CollectiveStep(
            count, dma, sent, flows or {}, self.on_chip, self.channels
        )

    @functools.cached_property
    def channels(self) -> int:
        """Return the number of parallel channels of a ring: 4 if the group has all
        chips of a torus, otherwise 2."""
        return max(2, len(self.wires()))

    def pairs(self, per_pair_of_ranks: float = 0.0, per_chip: float = 0.0) -> Flows:
        here = self.on_chip
        return {
            (a, b): per_chip + per_pair_of_ranks * here[a] * here[b]
            for a in self.acting
            for b in self.chips
            if a != b
        }

    def wires(self, limit: int | None = None) -> list[tuple[int, ...]]:
        """Return the closed paths along which a ring sends, one for each of its
        channels and at most `limit`; [] if the group is on one chip. A path is the
        group's chips in order, numbered over all nodes."""
        if len(self.chips) == 1:
            return []
        if len(self.group.by_node) > 1:
            paths = [self.chips, self.chips[::-1]]
        else:
            first = self.group.nodes[0] * math.prod(self.topology.shape)
            found = channels(self.topology, self.group)
            paths = [tuple(first + chip for chip in path) for path in found]
        return paths[:limit]

    def along(self, per_chip: float, limit: int | None = None) -> Flows:
        """Return flows of `per_chip` bytes from each chip to the next chip of a ring,
        divided equally over the channels that `wires(limit)` returns."""
        flows: defaultdict[tuple[int, int], float] = defaultdict(float)
        paths = self.wires(limit)
        for path in paths:
            for a, b in zip(path, (*path[1:], path[0]), strict=True):
                if a in self.acting:
                    flows[a, b] += per_chip / len(paths)
        return dict(flows)


Steps = list[CollectiveStep]


def _ring_scatter(site: _GroupSite, limit: int | None = None) -> Steps:
    """Return the steps of a reduce-scatter on a ring of at most `limit` channels. In
    the first step each rank sends a chunk of its data, in later steps a sum.

    ASSUMPTION: "ring" sends over all channels that the wires allow, although it adds
    the ranks' data in the order of one channel; "ring:2" sends over two channels."""
    c, flows = site.chunk, site.along(site.chunk, limit)
    first = site.step(3 * c, c, flows)
    return [first, *_repeated(site.step(2 * c, c, flows, count=site.ranks - 2))]


def _ring_gather(site: _GroupSite, limit: int | None = None) -> Steps:
    c = site.chunk
    return [site.step(c, c, site.along(c, limit), count=site.ranks - 1)]


def _kangaring_scatter(site: _GroupSite) -> Steps:
    """Return the steps of a reduce-scatter by kangaring [IN]: in each step, a pair of
    ranks adds its two chunks to the sum that it received from the pair before. The
    first pair receives no sum."""
    c, flows = site.chunk, site.along(2 * site.chunk)
    pairs = site.ranks // 2
    if pairs == 1:
        return [site.step(2 * c, c)]
    between = site.step(3 * c, c, flows, count=pairs - 2)
    return [site.step(2 * c, c, flows), *_repeated(between), site.step(3 * c)]


def _kangaring_gather(site: _GroupSite) -> Steps:
    """Return the steps of an all-gather by kangaring, which reads every chunk once and
    writes it twice [IN]."""
    c, pairs = site.chunk, site.ranks // 2
    between = site.step(2 * c, 2 * c, site.along(2 * c), count=pairs - 1)
    return [*_repeated(between), site.step(2 * c, c)]


def _repeated(step: CollectiveStep) -> Steps:
    return [step] if step.count > 0 else []


def _rdh_scatter(site: _GroupSite) -> Steps:
    """Return the steps of a reduce-scatter by rdh (recursive halving). The first step
    adds up the data of all ranks of a chip. In each further step every chip sends half
    of its remaining sums to another chip."""
    steps = [site.step(1.0, 1 - 1 / site.per_chip)] if site.per_chip > 1 else []
    for number in range(_bits(site)):
        part = 2.0 ** -(number + 1) / site.per_chip
        steps.append(site.step(3 * part, part, _exchange(site, number, part)))
    return _sliced(site, steps)


def _rdh_gather(site: _GroupSite) -> Steps:
    steps = []
    for number in reversed(range(_bits(site))):
        part = 2.0 ** -(number + 1) / site.per_chip
        steps.append(site.step(part, part, _exchange(site, number, part)))
    left = 1 - 1 / site.per_chip
    return _sliced(site, [*steps, *([site.step(left, left)] if left else [])])


def _sliced(site: _GroupSite, steps: Steps) -> Steps:
    """Return `steps` with `is_sliced` true if the group is in one node: there the steps
    run at the same time, each on another slice of the data. Over EFA a rank sends to
    one rank at a time [IX], so the steps follow each other."""
    within = len(site.group.by_node) == 1
    return [replace(step, is_sliced=within) for step in steps]


def _bits(site: _GroupSite) -> int:
    return len(site.chips).bit_length() - 1


def _exchange(site: _GroupSite, number: int, part: float) -> Flows:
    """Return the flows of a step of rdh: each rank sends `part` bytes to the chip whose
    label (`_GroupSite.labels`) differs from that of its own chip in one bit.

    ASSUMPTION: the first rank of a chip uses bit `number`, each further rank the next
    bit, so that all links are used. If all ranks used bit `number`, rdh would be slower
    than kangaring above 5 MB, but the vendor uses rdh up to 56 MB [IN]."""
    chips = {label: chip for chip, label in site.labels.items()}
    flows: defaultdict[tuple[int, int], float] = defaultdict(float)
    for rank in range(site.per_chip):
        bit = 1 << ((number + rank) % _bits(site))
        for chip in site.acting:
            flows[chip, chips[site.labels[chip] ^ bit]] += part
    return dict(flows)


def _gray_number(place: Sequence[int], values: Sequence[Sequence[int]]) -> int:
    label = 0
    for at, axis in zip(place, values, strict=True):
        index = axis.index(at)
        label = label * len(axis) + (index ^ index >> 1)
    return label


def _mesh_scatter(site: _GroupSite) -> Steps:
    n, k, c = len(site.chips), site.per_chip, site.chunk
    if site.topology.mesh == "full" and n > 1:
        return _star_scatter(site)
    if n == 1:
        return [site.step(1.0, 1 - c)]
    if k == 1:
        return [site.step((n - 1) * c + 1.0, (n - 1) * c, site.pairs(per_chip=c))]
    # For each other chip, every rank sums one chunk over the ranks of its own chip, and
    # sends the sum to the other chip.
    first = site.step(1.0, (n - 1) * c, site.pairs(per_chip=k * c))
    return [first, site.step(n * c)]


def _mesh_gather(site: _GroupSite) -> Steps:
    n, k, c = len(site.chips), site.per_chip, site.chunk
    if site.topology.mesh == "full" and n > 1:
        return _star_gather(site)
    if n == 1:
        return [site.step(1 - c, 1 - c)]
    first = site.step((n - 1) * c, (n - 1) * c, site.pairs(per_chip=k * c))
    return [first, *([site.step(1 - 1 / k, 1 - 1 / k)] if k > 1 else [])]


def _star_scatter(site: _GroupSite) -> Steps:
    c, away = site.chunk, site.ranks - site.per_chip
    flows = site.pairs(per_pair_of_ranks=c)
    return [site.step(away * c + 1.0, 1 - c, flows)]


def _star_gather(site: _GroupSite) -> Steps:
    c = site.chunk
    return [site.step(1 - c, 1 - c, site.pairs(per_pair_of_ranks=c))]


def _single_step(site: _GroupSite) -> Steps:
    n, away = site.ranks, site.ranks - site.per_chip
    flows = site.pairs(per_pair_of_ranks=1.0)
    return [site.step(away + n, n - 1, flows)]


_Algorithm = Callable[[_GroupSite], Steps]
#: Algorithm -> functions for its reduce-scatter and its all-gather.
_HALVES: Mapping[str, tuple[_Algorithm, _Algorithm]] = MappingProxyType(
    {
        "ring": (_ring_scatter, _ring_gather),
        **{
            f"ring:{n}": (
                functools.partial(_ring_scatter, limit=n),
                functools.partial(_ring_gather, limit=n),
            )
            for n in range(2, 5)
        },
        "kangaring": (_kangaring_scatter, _kangaring_gather),
        "rdh": (_rdh_scatter, _rdh_gather),
        "mesh": (_mesh_scatter, _mesh_gather),
        "left_fold": (_star_scatter, _star_gather),
    }
)
_WHOLE: Mapping[str, _Algorithm] = MappingProxyType(
    {"single_step_mesh": _single_step, "left_fold": _single_step}
)


# -- ops over groups -------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def steps_of(
    op: str, algorithm: str, groups: tuple[Group, ...], topology: Topology
) -> tuple[CollectiveStep, ...]:
    """Return the steps of a collective over groups of equal size, which all run it at
    the same time.

    The algorithm is one of `collectives.algorithms.ALGORITHMS` that the groups can run;
    for "all_to_all" it is "mesh"."""
    if groups[0].size == 1:
        return ()
    return merged([_of_group(op, algorithm, group, topology) for group in groups])


def _of_group(
    op: str,
    algorithm: str,
    group: Group,
    topology: Topology,
    *,
    first_only: bool = False,
) -> Steps:
    site = _GroupSite(group, topology, first_only=first_only)
    if op == "all_to_all":
        return _star_gather(site)
    inside, plus, between = algorithm.partition("+")
    if plus:
        return _over_nodes(op, inside, between, group, topology)
    if op == "all_reduce" and algorithm in _WHOLE:
        return _WHOLE[algorithm](site)
    if algorithm not in _HALVES:
        raise InternalError(f"algorithm {algorithm!r} has no steps of {op}")
    scatter, gather = _HALVES[algorithm]
    if op == "all_reduce":
        return scatter(site) + gather(site)
    return scatter(site) if op == "reduce_scatter" else gather(site)


def _over_nodes(
    op: str, inside: str, between: str, group: Group, topology: Topology
) -> Steps:
    nodes = group.by_node
    inner = [group.among(ranks) for ranks in nodes]
    outer = [group.among(ranks) for ranks in zip(*nodes, strict=True)]
    over = merged([_of_group(op, between, g, topology) for g in outer])
    return _joined(op, inside, inner, topology, _scaled(over, 1 / len(outer)))


def _joined(
    op: str, inside: str, inner: Sequence[Group], topology: Topology, over: Steps
) -> Steps:
    """Return the steps of a collective on several nodes [IX]. An all-reduce is a
    reduce-scatter within nodes, the steps `over` between nodes, and an all-gather
    within nodes. A reduce-scatter has only the first two parts, an all-gather only the
    last two."""

    def within(op: str) -> Steps:
        if inner[0].size == 1:
            return []
        return list(merged([_of_group(op, inside, g, topology) for g in inner]))

    if op == "all_gather":
        return over + within(op)
    scatter = within("reduce_scatter") + over
    return scatter if op == "reduce_scatter" else scatter + within("all_gather")


def steps_over_nodes(
    op: str, algorithm: str, inner: Sequence[Group], nodes: int, topology: Topology
) -> tuple[CollectiveStep, ...]:
    """Return the steps of a collective whose groups span `nodes` nodes, with the same
    layout on each node.

    The steps take as long as those of `steps_of`, but are computed without a list of
    every rank. `inner` has each group's ranks on the first node. The algorithm is "A+B"
    (A within nodes, B between nodes), or "B" if a group has one rank per node."""
    inside, _, between = algorithm.rpartition("+")
    chips = math.prod(topology.shape)
    outer = Group(
        chips=tuple(range(0, nodes * chips, chips)),
        nodes=tuple(range(nodes)),
        locals=(0,) * nodes,
        ranks_per_chip=inner[0].ranks_per_chip,
    )
    over = _of_group(op, between, outer, topology, first_only=True)
    own = Counter(chip for group in inner for chip in group.chips)
    ranks = {chip + n * chips: k for n in range(nodes) for chip, k in own.items()}
    part = [
        replace(step, senders=ranks, flows=_of_all(step.flows, own))
        for step in _scaled(over, 1 / inner[0].size)
    ]
    return tuple(_joined(op, inside, inner, topology, part))


def _of_all(flows: Flows, ranks: Counter[int]) -> Flows:
    """Return the flows of all ranks on the lowest chip in `ranks` (number of ranks by
    chip). `flows` are those of a single rank on chip 0: they are shifted to the lowest
    chip, and multiplied by its number of ranks."""
    first = min(ranks)
    return {
        (a + first, b + first): size * ranks[first] for (a, b), size in flows.items()
    }


def permute_steps(
    pairs: Sequence[tuple[int, int]], group: Group
) -> tuple[CollectiveStep, ...]:
    """Return the single step of a collective-permute; () if there are no pairs.

    Pairs are (source, destination), indices into the group. A rank that is the source
    of several pairs sends one message for each of these pairs, all of the same size and
    on separate channels, as the rings of `nki.collectives` do."""
    if not pairs:
        return ()
    most = float(max(Counter(source for source, _ in pairs).values()))
    flows: defaultdict[tuple[int, int], float] = defaultdict(float)
    for source, destination in pairs:
        a, b = group.chips[source], group.chips[destination]
        if a != b:
            flows[a, b] += 1.0
    on_chip = Counter(group.chips)
    return (CollectiveStep(1, most, most, dict(flows), on_chip, int(most)),)
