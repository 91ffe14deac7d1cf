"""Groups of ops to which a precision search assigns candidates, by rules of a `Policy`.

The lowering reports the texts that rules match: an op's name, the parameter paths from
which its operands derive, its name stack and source line. A group is a set of
selectors, patterns of these texts. An op is in the last group that matches it, as in
`Policy`. The other ops are the group `REST`, which gets the fields of the policy.
Layers stacked in one scan are one op and one group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.name_stack import read_name_stack
from neuronjax.policy import Policy, Rule

CONTRACTIONS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
REST = "(others)"


class HeardOp(NamedTuple):
    """The texts of an op, which selectors of rules may match."""

    op: str
    params: tuple[str, ...] = ()
    scope: str = ""
    source: str = ""
    module: str = ""

    def matches(self, selectors: Mapping[str, str]) -> bool:
        """Return whether a rule with these selectors matches the op."""
        rule = Rule(**selectors, rounding="rne")  # type: ignore[arg-type]
        texts = self._asdict()
        return rule.matches(texts.pop("op"), **texts)


class ListeningPolicy(Policy):
    """A policy that changes nothing and records each op that the lowering looks up.

    `heard` has the ops in the order of lowering."""

    heard: list[HeardOp]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "heard", [])

    @classmethod
    def like(cls, policy: Policy) -> ListeningPolicy:
        """Return `policy` with one rule, which matches all ops and changes nothing."""
        fields = {name: getattr(policy, name) for name in policy.__dataclass_fields__}
        fields["rules"] = (Rule(op="", overflow=policy.overflow),)
        return cls(**fields)

    def for_op(self, op_name: str, **texts: Any) -> Policy:
        self.heard.append(HeardOp(op_name, **texts))
        return super().for_op(op_name, **texts)


@dataclass(frozen=True, kw_only=True)
class OpGroup:
    """A group of ops that get one precision.

    `selectors` are the selectors of its `Rule`; None for the group of all other ops."""

    name: str
    selectors: Mapping[str, str] | None
    ops: int


@dataclass(frozen=True, kw_only=True)
class Groups:
    """All groups of a program, in the order of their rules, with `REST` in front.

    `overlap` says whether an op matches the selectors of two groups."""

    groups: tuple[OpGroup, ...]
    overlap: bool


Selection = Mapping[str, Mapping[str, str]]


def find_groups(heard: Sequence[HeardOp], by: str | Selection) -> Groups:
    """Return the groups of a program's ops.

    `by` is "module" (the part of the model, as all reports name it), "param" (the
    pytree path of the weight), "scope" (the name stack; forward and backward pass
    together), "source" (the user's line), "op" (its name), or a mapping from names of
    groups to the selectors of a `Rule`.

    Raises:
        InvalidProgramError: `by` is another word, or a group has no op.
    """
    ops = Counter(heard)
    if not isinstance(by, str):
        found = _owned(ops, {name: dict(selectors) for name, selectors in by.items()})
        missing = [n for n in by if n not in {group.name for group in found.groups}]
        if missing:
            raise InvalidProgramError(
                f"the group {missing[0]!r}, {dict(by[missing[0]])}, has no op that a "
                "candidate can change",
                remedy="correct its pattern, or leave it out",
            )
        return found
    if by not in _KINDS:
        raise InvalidProgramError(
            f"groups is {by!r}",
            remedy=f"use one of {', '.join(_KINDS)}, or selectors by name: "
            '{"head": {"param": "head/kernel"}}',
        )
    key, pattern = _KINDS[by]
    keys = {op: key(op) or None for op in ops}
    # "block" precedes "block/mlp", since the last rule that matches an op counts.
    found = filter(None, dict.fromkeys(keys.values()))
    names = sorted(found, key=lambda name: name.count("/"))
    readable = {name: {by: pattern(name)} for name in names}
    if all(_owner(op, readable) == keys[op] for op in ops):
        return _owned(ops, readable)
    return _owned(ops, {name: {by: _exact(by, ops, keys, name)} for name in names})


def _param(op: HeardOp) -> str | None:
    """Return the last of the op's parameter paths, if possible with a "/"; None if it
    has none. The last belongs to the right operand: the weight in `x @ w`."""
    inside = [path for path in op.params if "/" in path]
    return next(reversed(inside or op.params), None)


def _whole(name: str) -> str:
    return f"^{re.escape(name)}$"


def _in_scope(name: str) -> str:
    """Return a pattern that finds a scope in name stacks, also within `jvp(...)`."""
    parts = r"\)*/(?:.*[/(])?".join(map(re.escape, name.split("/")))
    return f"(?:^|[/(]){parts}[/)]"


#: `by` -> functions that return the name of an op's group, and a pattern of this name.
_KINDS: Mapping[str, tuple[Callable[[HeardOp], str | None], Callable[[str], str]]] = {
    "module": (lambda op: op.module, _whole),
    "param": (_param, _whole),
    "scope": (lambda op: "/".join(read_name_stack(op.scope).names), _in_scope),
    "source": (
        lambda op: op.source.rpartition("/")[2],
        lambda name: f"(?:^|/){re.escape(name)}$",
    ),
    "op": (lambda op: op.op, _whole),
}


def _exact(
    by: str, ops: Iterable[HeardOp], keys: Mapping[HeardOp, str | None], name: str
) -> str:
    """Return a pattern that matches only the full texts of the ops of group `name`."""
    own = (op for op in ops if keys[op] == name)
    texts = [getattr(op, by) for op in own] if by != "param" else [name]
    return f"^(?:{'|'.join(map(re.escape, dict.fromkeys(texts)))})$"


def _owner(op: HeardOp, named: Selection) -> str | None:
    found = [name for name, selectors in named.items() if op.matches(selectors)]
    return found[-1] if found else None


def _owned(ops: Mapping[HeardOp, int], named: Selection) -> Groups:
    counts: Counter[str | None] = Counter()
    for op, count in ops.items():
        counts[_owner(op, named)] += count
    known = ((name, chosen) for name, chosen in named.items() if name in counts)
    groups = [OpGroup(name=n, selectors=s, ops=counts[n]) for n, s in known]
    if None in counts:
        groups.insert(0, OpGroup(name=REST, selectors=None, ops=counts[None]))
    kept = [g.selectors for g in groups if g.selectors is not None]
    overlap = any(sum(op.matches(s) for s in kept) > 1 for op in ops)
    return Groups(groups=tuple(groups), overlap=overlap)


def explained(shown: Sequence[OpGroup], groups: Sequence[OpGroup]) -> Iterator[str]:
    """Yield caption lines about the `shown` groups; `groups` are all groups."""
    if shown and shown[0].selectors is None:
        yield f"{REST}: ops that are in none of the other groups"
    names = [group.name for group in groups]
    for group in shown:
        inside = [name for name in names if name.startswith(f"{group.name}/")]
        if inside:
            more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
            yield f"{group.name}: without the ops of the groups {inside[0]}{more}"
