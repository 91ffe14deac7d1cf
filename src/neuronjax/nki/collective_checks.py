"""`ReplicaGroup`, and the checks of a collective's operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from neuronjax.ir.collective_set import GROUPS_REMEDY, Groups, fault_of_groups
from neuronjax.ir.collectives.algorithms import closed_paths
from neuronjax.ir.collectives.placement import Placement
from neuronjax.nki import refusing, trace as tracing
from neuronjax.nki.memory import NKIObject, is_hbm, is_sbuf
from neuronjax.nki.refusing import unsupported
from neuronjax.nki.tensor import NkiTensor

Tensors = Sequence[NkiTensor]


@dataclass
class ReplicaGroup(NKIObject):
    """The groups of ranks that communicate; every rank is in exactly one.

    Attributes:
        replica_groups: a list of rank numbers for each group, in the members' order.
    """

    replica_groups: Sequence[Sequence[int]]

    @property
    def groups(self) -> Groups:
        """The groups as tuples."""
        return tuple(tuple(map(int, group)) for group in self.replica_groups)


def refuse(where: str, what: str, remedy: str) -> NoReturn:
    refusing.refuse(f"nki.collectives.{where}", what, remedy)


def ranks_of_launch(where: str) -> int:
    ranks = tracing.current().launch.ranks
    if not ranks:
        unsupported(
            f"nki.collectives.{where}",
            "a collective in a kernel that is launched alone",
            "give the number of ranks, kernel.with_ranks(4)(x), where x and every "
            "other array has a leading axis of ranks; or call kernel in neuronjax.jit "
            "inside jax.shard_map over all axes of a mesh, whose devices are the ranks",
        )
    return ranks


def groups_of(where: str, replica_group: ReplicaGroup) -> Groups:
    if not isinstance(replica_group, ReplicaGroup):
        remedy = "give nki.collectives.ReplicaGroup([[0, 1], [2, 3]])"
        refuse(where, f"replica_group is {replica_group!r}", remedy)
    groups = replica_group.groups
    fault = fault_of_groups(groups, ranks_of_launch(where)) if groups else "no groups"
    if fault:
        refuse(where, fault, GROUPS_REMEDY)
    return groups


def check_tensors(
    where: str,
    srcs: Tensors,
    dsts: Tensors,
    *,
    sbuf: bool = True,
    most: int | None = None,
) -> None:
    """Check that srcs and dsts are equally many tensors in HBM (at most `most`), or, if
    `sbuf`, one tensor each in SBUF."""
    tensors = [*srcs, *dsts]
    if not srcs or len(srcs) != len(dsts) or len(srcs) > (most or len(srcs)):
        wanted = "exactly one tensor" if most == 1 else "equally many tensors"
        problem = f"{len(srcs)} srcs and {len(dsts)} dsts"
        refuse(where, problem, f"give lists of {wanted}")
    for t in tensors:
        if not isinstance(t, NkiTensor):
            refuse(where, f"{t!r} among srcs and dsts", "give lists of tensors")
    in_hbm = all(is_hbm(t.buffer) for t in tensors)
    one_in_sbuf = all(is_sbuf(t.buffer) for t in tensors) and len(srcs) == 1
    if not in_hbm and not (sbuf and one_in_sbuf):
        problem = ", ".join(sorted({str(t.buffer) for t in tensors}))
        also = ", or one src and one dst in SBUF" if sbuf else ""
        refuse(where, f"{len(srcs)} srcs in {problem}", f"put all tensors in HBM{also}")
    for src, dst in zip(srcs, dsts, strict=True):
        if src.dtype != dst.dtype:
            refuse(where, f"src {src.dtype}, dst {dst.dtype}", "give equal dtypes")


def check_alike(where: str, srcs: Tensors, dsts: Tensors) -> None:
    for src, dst in zip(srcs, dsts, strict=True):
        check_tensors(where, [src], [dst])
        check_shape(where, dst, src.shape)


def check_shape(where: str, dst: NkiTensor, shape: tuple[int, ...]) -> None:
    if tuple(dst.shape) != tuple(shape):
        refuse(
            where, f"dst has shape {dst.shape}", f"give dst the shape {tuple(shape)}"
        )


def check_dimension(where: str, dimension: int, legal: tuple[int, ...]) -> None:
    if dimension not in legal:
        remedy = f"use {' or '.join(map(str, legal))}"
        refuse(where, f"collective_dim={dimension}", remedy)


def part_of(where: str, src: NkiTensor, parts: int) -> tuple[int, ...]:
    """Return the shape of one of `parts` equal parts along the first dimension."""
    if src.shape[0] % parts:
        refuse(
            where,
            f"src has shape {src.shape} for {parts} ranks",
            f"make the first size a multiple of {parts}",
        )
    return (src.shape[0] // parts, *src.shape[1:])


def check_not_in_loop(where: str) -> None:
    if tracing.current().depth != 1:
        unsupported(
            f"nki.collectives.{where}",
            "a collective in a loop of the device",
            "loop with range or nl.affine_range, which unroll",
        )


def rings_of(
    where: str, replica_group: ReplicaGroup, channel_ids: Sequence[int]
) -> tuple[Groups, ...]:
    """Return, for every channel, one ring of ranks per group."""
    groups, channels = groups_of(where, replica_group), list(channel_ids)
    placement = Placement.of(tracing.current().target)
    paths = [
        closed_paths(placement.group(group), range(len(group))) for group in groups
    ]
    most = min(map(len, paths))
    if channels != list(range(len(channels))) or not 1 <= len(channels) <= most:
        refuse(
            where,
            f"channel_ids {channels}",
            f"use 0, 1, ...; at most {most} channels for this group",
        )
    return tuple(
        tuple(
            tuple(group[member] for member in path[channel])
            for group, path in zip(groups, paths, strict=True)
        )
        for channel in channels
    )


def by_channel(
    where: str, tensors: Sequence[Tensors], rings: tuple[Groups, ...]
) -> list[NkiTensor]:
    if len(tensors) != len(rings) or any(len(inner) != 1 for inner in tensors):
        counts = [len(inner) for inner in tensors]
        refuse(
            where,
            f"{len(tensors)} lists, of {counts} tensors, for {len(rings)} channels",
            "give one list per channel, with one tensor in each list",
        )
    return [inner[0] for inner in tensors]
