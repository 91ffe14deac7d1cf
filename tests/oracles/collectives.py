"""Collectives message by message: what each rank holds after each documented algorithm.

Every rank owns a memory of chunks. A step sends chunks; a fold adds chunks in FP32 from
left to right and stores the sum in the tensor's dtype, its one rounding. Moves never
round, so gathers take the direct route. A chunk remembers its fold tree (`[[1+2]+0]`:
a bracket is one fold and one rounding, the numbers are ranks) and the roundings on the
tree's longest path. Collective facts, sections 2.2, 2.3, 2.5, 5.4; design, 5 and 7.

Documented are the algorithms of the docstrings below, FP32 sums, partial sums stored in
the tensor's dtype, and a ring chunk's start at the rank after its owner.

Open points and what is assumed here:

 1. Chunks: the flattened buffer in pieces of ceil(size / N), in the group's listed
    order; the last are shorter or empty (as if padded). Slices keep a chunk's tree.
 2. Channels: the chunk of a rank in as many equal pieces as a ring has channels
    (ceil, as in point 1), the k-th around the k-th path (`collective_channels`). Every
    second path is the reverse of one, so KangaRing's second one swaps the roles.
    `all_reduce` and `reduce_scatter` have one, which carries everything.
 3. Ring path: where the group has all 16 chips of a 4 x 4 torus, along its two cycles
    without a common wire; else the listed order of the group, whatever the chips.
 4. Chips ascend by number, and ranks ascend inside a chip, in every fold of several
    sources, as chip index of rdh and as path of KangaRing; `listed=True` takes both
    in the order in which the group names them.
 5. KangaRing: of a chip's ranks 0 1 2 3 the primaries are 0 and 2, their secondaries 1
    and 3 (`secondaries=3`: one primary for the chip). The sum is
    (received + primary) + secondary. A chunk starts at the unit after its owner's unit
    and ends there, for a secondary's chunk too.
 6. rdh, chip index: the place among the group's chips, not the chip's own number. The
    halving goes W X Y Z, from the highest bit down (`high_bit_first`); between nodes
    from bit 0 up. Within a pair the lower chip is the left operand (which matters to
    NaN payloads only).
 7. rdh needs 2^p chips with equally many ranks; mesh and ring take any group.
 8. Mesh: the owner's own chip has no special place among the partial sums.
 9. The limit of 16 sources of one DMA does not split a fold: it stays in FP32.
10. single_step folds in ascending order (point 4), left_fold in the listed order. The
    ranks' equal folds of the whole buffer are simulated once, by the chunk's owner.
11. A fold of one source is a copy: a group of one rank, or one rank on a chip, neither
    rounds nor flushes. A fold has no initial zero: -0 + -0 is -0.
12. FP32 subnormals are zeros as operands and results of a fold, and survive copies;
    `flush=False` keeps them in sums. FP16 and FP8 ones are normal FP32 and stay.
13. Stores round to nearest even, overflow to Inf (never saturate), and make every NaN
    the positive quiet one. Maximum and minimum propagate NaN and order -0 below +0.
14. Integers through FP32: converted (nearest even), folded, converted back after every
    fold; what lies beyond the type saturates. Exact ones wrap. bool add is OR.
15. Hierarchical all-reduce: the buffer is split over the local indices as in point 1,
    each piece over the nodes, both in the order of first appearance in the group.
    Hierarchical reduce-scatter: only the group's listed order decides who owns what.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import ml_dtypes
import numpy as np

from tests.oracles import floats, reduction

Group = Sequence[int]
Groups = Sequence[Group]
Shape = tuple[int, int]
Step = Callable[[np.ndarray, np.ndarray], np.ndarray]

FP32: Mapping[str, Step] = {
    "add": np.add,
    "maximum": reduction.maximum,
    "minimum": reduction.minimum,
}
EXACT: Mapping[str, Step] = {op: getattr(np, op) for op in FP32}


def _store(total: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """FP32 to the tensor's dtype."""
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        exact = np.clip(np.rint(total.astype(np.float64)), low, high)
        return exact.astype(np.int64).astype(dtype)
    total = np.where(np.isnan(total), np.float32(np.nan), total)
    with np.errstate(all="ignore"):
        return total.astype(dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What a fold computes. `integer_path`: "exact" or "fp32"."""

    operation: str = "add"
    flush: bool = True
    integer_path: str = "exact"

    def fold(self, sources: Sequence[np.ndarray]) -> np.ndarray:
        """The sources from left to right in FP32, stored once in their dtype."""
        dtype = sources[0].dtype
        if dtype == np.bool_ or (dtype.kind in "iu" and self.integer_path == "exact"):
            return functools.reduce(EXACT[self.operation], sources)
        # Flushing a sum of normal numbers once is exact: below 2^-126 it has no error.
        clean = floats.flush if self.flush else np.asarray
        step = FP32[self.operation]
        with np.errstate(all="ignore"):
            total = clean(sources[0].astype(np.float32))
            for source in sources[1:]:
                total = clean(step(total, clean(source.astype(np.float32))))
        return _store(total, dtype)


DEFAULT = Arithmetic()

# ---- Ranks, memories, messages.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Numbers in the tensor's dtype, and how they came about."""

    values: np.ndarray
    tree: str
    roundings: int = 0


#: Chunks by the rank that owns the reduced chunk in the end.
Bundle = Mapping[int, Chunk]


class Machine:
    """The ranks' memories, from arrays by rank and chunk; counts steps."""

    def __init__(
        self, parts: Mapping[int, Mapping[int, np.ndarray]], arithmetic: Arithmetic
    ):
        self.memory = {
            rank: {slot: Chunk(values=v, tree=str(rank)) for slot, v in mine.items()}
            for rank, mine in parts.items()
        }
        self.arithmetic = arithmetic
        self.steps = 0
        self._flying: list[tuple[int, int, Bundle]] = []

    def own(self, rank: int, slots: Iterable[int]) -> Bundle:
        """What a rank's memory holds of some chunks."""
        return {slot: self.memory[rank][slot] for slot in slots}

    def fold(self, bundles: Sequence[Bundle]) -> Bundle:
        """Chunk by chunk; one source is a copy."""
        if len(bundles) == 1:
            return bundles[0]
        slots = bundles[0].keys()
        assert all(bundle.keys() == slots for bundle in bundles)
        return {slot: self._fold([b[slot] for b in bundles]) for slot in slots}

    def _fold(self, chunks: Sequence[Chunk]) -> Chunk:
        return Chunk(
            values=self.arithmetic.fold([chunk.values for chunk in chunks]),
            tree="[" + "+".join(chunk.tree for chunk in chunks) + "]",
            roundings=1 + max(chunk.roundings for chunk in chunks),
        )

    def send(self, source: int, target: int, bundle: Bundle) -> None:
        """Puts chunks on the wire; nobody sees them before `deliver`."""
        self._flying.append((source, target, bundle))

    def deliver(self) -> dict[int, dict[int, Bundle]]:
        """Ends a step: {target: {source: chunks}}."""
        inbox: dict[int, dict[int, Bundle]] = collections.defaultdict(dict)
        for source, target, bundle in self._flying:
            inbox[target][source] = bundle
        self._flying = []
        self.steps += 1
        return inbox


# ---- Algorithms.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm by name, where the ranks sit, and the open points (see above).

    "hierarchical" names one algorithm inside a node and one between nodes.
    """

    name: str
    ranks_per_chip: int = 4
    secondaries: int = 1
    high_bit_first: bool = True
    listed: bool = False
    ranks_per_node: int = 64
    intra: Algorithm | None = None
    inter: Algorithm | None = None

    def chips(self, group: Group) -> list[list[int]]:
        """The group's ranks by chip."""
        by_chip: dict[int, list[int]] = collections.defaultdict(list)
        for rank in group if self.listed else sorted(group):
            by_chip[rank // self.ranks_per_chip].append(rank)
        return list(by_chip.values())


def hierarchical(intra: str, inter: str, **where: int) -> Algorithm:
    """Intra x inter; `where`: ranks_per_chip, ranks_per_node, secondaries."""
    inside = dataclasses.replace(Algorithm(name=intra), **where)
    # Between nodes a rank stands alone, and bits count from 0 up.
    outside = Algorithm(name=inter, ranks_per_chip=1, high_bit_first=False)
    return dataclasses.replace(inside, name="hierarchical", intra=inside, inter=outside)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """`blocks`: the chunks that each rank of the group has to end with."""

    group: Group
    blocks: Mapping[int, Sequence[int]]
    algorithm: Algorithm

    @property
    def chips(self) -> list[list[int]]:
        return self.algorithm.chips(self.group)

    def block(self, ranks: Group) -> list[int]:
        return [slot for rank in ranks for slot in self.blocks[rank]]


def _kangaroos(job: Job) -> list[list[int]]:
    size = 1 + job.algorithm.secondaries
    if any(len(chip) != job.algorithm.ranks_per_chip for chip in job.chips):
        raise ValueError("KangaRing needs all ranks of each chip in the group")
    if job.algorithm.ranks_per_chip % size:
        raise ValueError("ranks of a chip must divide into primaries and secondaries")
    return [chip[i : i + size] for chip in job.chips for i in range(0, len(chip), size)]


def _reduce_around(machine: Machine, job: Job, units: list[list[int]]) -> None:
    """Step 0 sends the unit's own sum on; later steps add it to what came."""
    n = len(units)

    def mine(i: int, owner: int) -> list[Bundle]:
        slots = job.block(units[owner % n])
        return [machine.own(rank, slots) for rank in units[i]]

    held = {i: machine.fold(mine(i, i - 1)) for i in range(n)}
    for step in range(n - 1):
        for i in range(n):
            machine.send(units[i][0], units[(i + 1) % n][0], held[i])
        inbox = machine.deliver()
        for i in range(n):
            received = inbox[units[i][0]][units[i - 1][0]]
            held[i] = machine.fold([received, *mine(i, i - 2 - step)])
    for i, rank in ((i, rank) for i in range(n) for rank in units[i]):
        machine.memory[rank].update({slot: held[i][slot] for slot in job.blocks[rank]})


def _reduce_direct(machine: Machine, job: Job, order: Group) -> None:
    """Everyone sends every owner its chunks; the owner folds all in one go."""
    for owner, source in itertools.product(job.group, order):
        machine.send(source, owner, machine.own(source, job.blocks[owner]))
    for owner, received in machine.deliver().items():
        sums = machine.fold([received[source] for source in order])
        machine.memory[owner].update(sums)


def _reduce_mesh(machine: Machine, job: Job) -> None:
    """For each owner one rank of every chip sums the chip; the owner sums those."""
    workers: dict[int, list[int]] = collections.defaultdict(list)
    for i, owner in enumerate(job.group):
        for chip in job.chips:
            worker = owner if owner in chip else chip[i % len(chip)]
            parts = [machine.own(rank, job.blocks[owner]) for rank in chip]
            machine.send(worker, owner, machine.fold(parts))
            workers[owner].append(worker)
    inbox = machine.deliver()
    machine.steps += 1  # the owners' folds
    for owner, chosen in workers.items():
        machine.memory[owner].update(machine.fold([inbox[owner][w] for w in chosen]))


def _bits(job: Job) -> list[int]:
    n = len(job.chips)
    if n & (n - 1) or len(set(map(len, job.chips))) != 1:
        raise ValueError("rdh needs 2^p chips with equally many ranks of the group")
    bits = [1 << i for i in range(n.bit_length() - 1)]
    return bits[::-1] if job.algorithm.high_bit_first else bits


def _reduce_rdh(machine: Machine, job: Job) -> None:
    """Local rank l sums the chip for all owners of local rank l; then halving."""
    bits, chips = _bits(job), job.chips
    home = {slot: c for c, chip in enumerate(chips) for slot in job.block(chip)}
    held: dict[int, Bundle] = {}
    places = [(chips.index(c), i, rank) for c in chips for i, rank in enumerate(c)]
    for c, i, rank in places:
        slots = job.block([chip[i] for chip in chips])
        held[rank] = machine.fold([machine.own(source, slots) for source in chips[c]])
    machine.steps += 1
    for bit in bits:
        for c, i, rank in places:
            away = {s: x for s, x in held[rank].items() if (home[s] ^ c) & bit}
            machine.send(rank, chips[c ^ bit][i], away)
        inbox = machine.deliver()
        for c, i, rank in places:
            kept = {s: x for s, x in held[rank].items() if not (home[s] ^ c) & bit}
            pair = [kept, inbox[rank][chips[c ^ bit][i]]]
            held[rank] = machine.fold(pair[::-1] if c & bit else pair)
    for rank, bundle in held.items():
        machine.memory[rank].update(bundle)


REDUCE: Mapping[str, Callable[[Machine, Job], None]] = {
    "ring": lambda m, job: _reduce_around(m, job, [[r] for r in job.group]),
    "kangaring": lambda m, job: _reduce_around(m, job, _kangaroos(job)),
    "rdh": _reduce_rdh,
    "mesh": _reduce_mesh,
    "single_step": lambda m, job: _reduce_direct(
        m, job, job.group if job.algorithm.listed else sorted(job.group)
    ),
    "left_fold": lambda m, job: _reduce_direct(m, job, job.group),
}


# ---- All-reduce and reduce-scatter of one group.


def _stages(group: Group, algorithm: Algorithm) -> list[list[Job]]:
    """Jobs side by side inside the nodes, then between them; one job if flat."""
    if algorithm.intra is None or algorithm.inter is None:
        blocks = {rank: [rank] for rank in group}
        return [[Job(group=group, blocks=blocks, algorithm=algorithm)]]
    nodes: dict[int, list[int]] = collections.defaultdict(list)
    rails: dict[int, list[int]] = collections.defaultdict(list)
    for rank in group:
        nodes[rank // algorithm.ranks_per_node].append(rank)
        rails[rank % algorithm.ranks_per_node].append(rank)
    if any(len(rail) != len(nodes) for rail in rails.values()):
        raise ValueError("a group has to have the same local ranks on every node")
    blocks = {rank: rails[rank % algorithm.ranks_per_node] for rank in group}
    inside = [
        Job(group=node, blocks={r: blocks[r] for r in node}, algorithm=algorithm.intra)
        for node in nodes.values()
    ]
    between = [_stages(rail, algorithm.inter)[0][0] for rail in rails.values()]
    return [inside, between]


def _pieces(size: int, group: Group, algorithm: Algorithm) -> dict[int, slice]:
    """Elements of the flattened buffer by the rank that reduces them."""
    jobs = _stages(group, algorithm)[-1]
    return {
        rank: slice(piece.start, piece.stop)
        for part, job in zip(split(range(size), len(jobs)), jobs, strict=True)
        for piece, rank in zip(split(part, len(job.group)), job.group, strict=True)
    }


def split(part: range, n: int) -> list[range]:
    c = -(-len(part) // n)
    return [part[i * c : (i + 1) * c] for i in range(n)]


def run(
    parts: Mapping[int, Mapping[int, np.ndarray]],
    group: Group,
    algorithm: Algorithm,
    how: Arithmetic,
) -> Machine:
    """parts[rank][owner] in; memory[owner][owner] of the machine is the result."""
    machine = Machine(parts, how)
    for job in itertools.chain(*_stages(group, algorithm)):
        REDUCE[job.algorithm.name](machine, job)
    return machine


def gather(machine: Machine, group: Group, algorithm: Algorithm) -> None:
    """The second half of an all-reduce: memory[rank][owner] for all, by copies."""
    for job in itertools.chain(*reversed(_stages(group, algorithm))):
        for source, target in itertools.product(job.group, job.group):
            machine.send(source, target, machine.own(source, job.blocks[source]))
        for target, received in machine.deliver().items():
            for bundle in received.values():
                machine.memory[target].update(bundle)


def explain(group: Group, algorithm: Algorithm) -> dict[int, Chunk]:
    """By owner, the tree and the roundings of its chunk; the values are N."""
    ones = {rank: dict.fromkeys(group, np.ones(1, np.float32)) for rank in group}
    machine = run(ones, group, algorithm, DEFAULT)
    return {rank: machine.memory[rank][rank] for rank in group}


# ---- StableHLO's collectives on arrays x[rank, ...]; dimensions leave the rank out.


def all_reduce(
    x: np.ndarray, groups: Groups, algorithm: Algorithm, how: Arithmetic = DEFAULT
) -> np.ndarray:
    """The shape of x; every rank has to be in one group."""
    flat = x.reshape(len(x), -1)
    out: dict[int, np.ndarray] = {}
    for group in groups:
        places = _pieces(flat.shape[1], group, algorithm)
        parts = {r: {o: flat[r, place] for o, place in places.items()} for r in group}
        machine = run(parts, group, algorithm, how)
        gather(machine, group, algorithm)
        for rank in group:
            out[rank] = np.concatenate([machine.memory[rank][o].values for o in places])
    return np.stack([out[rank] for rank in range(len(x))]).reshape(x.shape)


def reduce_scatter(
    x: np.ndarray,
    groups: Groups,
    dimension: int,
    algorithm: Algorithm,
    how: Arithmetic = DEFAULT,
) -> np.ndarray:
    """Piece k of the dimension to the k-th of each group."""
    out: dict[int, np.ndarray] = {}
    for group in groups:
        parts = {r: cut(x[r], group, dimension) for r in group}
        memory = run(parts, group, algorithm, how).memory
        out |= {rank: memory[rank][rank].values for rank in group}
    return np.stack([out[rank] for rank in range(len(x))])


def cut(x: np.ndarray, group: Group, dimension: int) -> dict[int, np.ndarray]:
    """Equal parts by their owner; ValueError where they are not equal."""
    return dict(zip(group, np.split(x, len(group), axis=dimension), strict=True))


def all_gather(x: np.ndarray, groups: Groups, dimension: int) -> np.ndarray:
    """The group's arrays one after another, in listed order, on each of its ranks."""
    of = {r: np.concatenate(x[list(g)], axis=dimension) for g in groups for r in g}
    return np.stack([of[rank] for rank in range(len(x))])


def all_to_all(x: np.ndarray, groups: Groups, split: int, concat: int) -> np.ndarray:
    """Member i of a group gets part i of every member, concatenated in listed order."""
    out = {}
    for group in groups:
        parts = {r: cut(x[r], group, split) for r in group}
        for rank in group:
            out[rank] = np.concatenate([parts[r][rank] for r in group], axis=concat)
    return np.stack([out[rank] for rank in range(len(x))])


def collective_permute(x: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """(source, target) pairs; who is no target gets zeros."""
    if any(len(set(ends)) != len(pairs) for ends in zip(*pairs, strict=True)):
        raise ValueError("a rank is at most once source and at most once target")
    return _copied(x, pairs)


def collective_broadcast(x: np.ndarray, groups: Groups) -> np.ndarray:
    """The first of each group to all of it; ranks of no group get zeros."""
    return _copied(x, [(group[0], rank) for group in groups for rank in group])


def _copied(x: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    out = np.zeros_like(x)
    for source, target in pairs:
        out[target] = x[source]
    return out


# ---- Data x[rank, element] on which algorithms differ.

#: Powers of two between the smallest and the largest magnitudes of `telling`.
SPREAD = {"float32": 12, "bfloat16": 6, "float16": 5, "float8_e4m3": 2, "int32": 4}


def telling(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Mixed magnitudes and signs: other roundings change many elements."""
    scale = np.exp2(rng.integers(0, SPREAD[dtype] + 1, shape))
    # As integers beyond 2^24, so that FP32 rounds them.
    unit = 2.0**22 if dtype == "int32" else 1.0
    return (rng.standard_normal(shape) * scale * unit).astype(np.dtype(dtype))


def overflowing(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Twice 0.75 and -0.75 of the largest number, else zeros: who meets Inf?"""
    largest = float((np.iinfo if dtype == "int32" else ml_dtypes.finfo)(dtype).max)
    signs = np.zeros(shape)
    signs[:4] = np.array([0.75, -0.75, 0.75, -0.75])[: shape[0], None]
    signs = rng.permuted(signs, axis=0)
    return (signs * largest).astype(np.dtype(dtype))


def cancelling(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    """Small numbers; two ranks hold 2^k and -2^k, and lose what is added between."""
    k, unit = {"int32": (30, 8.0), "float8_e4m3": (7, 0.25)}.get(dtype, (15, 2.0**-12))
    x = rng.standard_normal(shape) * unit
    x[:2] = np.array([2.0**k, -(2.0**k)])[: shape[0], None]
    return rng.permuted(x, axis=0).astype(np.dtype(dtype))


# Fold orders of narrow types differ on `cancelling`; FP8 sums are exact in FP32.
GENERATORS = {f.__name__: f for f in (telling, overflowing, cancelling)}
