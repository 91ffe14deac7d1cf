"""`NkiTensor.rearrange`: named dimensions split, reordered and merged."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor_view import View

Pattern = Sequence[str | Sequence[str]]


def rearranged(
    t: View, source: Pattern, target: Pattern, sizes: dict[str, int]
) -> View:
    """Return the view whose dimensions are those of `target`."""
    groups = [_group(g) for g in source]
    if len(groups) != t.ndim:
        _refuse(f"pattern {source} for a tensor of shape {t.shape}")
    names = [name for group in groups for name in group]
    wanted = [name for group in target for name in _group(group)]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        _refuse(f"names {names} become {wanted}")
    view = t
    for dim in reversed(range(t.ndim)):
        view = _split(view, dim, groups[dim], sizes)
    view = view.permute([names.index(name) for name in wanted])
    for dim, group in enumerate(map(_group, target)):
        view = _merge(view, dim, len(group))
    return view


def _group(entry: str | Sequence[str]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _split(t: View, dim: int, group: tuple[str, ...], sizes: dict[str, int]) -> View:
    if len(group) == 1:
        fixed = sizes.get(group[0], t.shape[dim])
        if fixed != t.shape[dim]:
            _refuse(f"{group[0]} has size {t.shape[dim]}, not {fixed}")
        return t
    if not group:
        return t.squeeze_dim(dim)
    known = prod(sizes[name] for name in group if name in sizes)
    unknown = [name for name in group if name not in sizes]
    if len(unknown) > 1 or known < 1 or t.shape[dim] % known:
        _refuse(f"sizes {sizes} do not split {group} of size {t.shape[dim]}")
    return t.reshape_dim(dim, [sizes.get(name, -1) for name in group])


def _merge(t: View, dim: int, count: int) -> View:
    if count == 0:
        return t.expand_dim(dim)
    return t if count == 1 else t.flatten_dims(dim, dim + count - 1)


def _refuse(what: str) -> None:
    refuse(
        "rearrange",
        what,
        "give one entry per dimension, the same names on both sides, and in "
        "fixed_sizes all sizes of a group but one",
    )
