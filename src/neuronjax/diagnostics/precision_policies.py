"""Candidates of a precision search, and the policy of an assignment to groups.

A candidate is a policy without rules. The policy of an assignment is the candidate of
the group `REST` (the most frequent candidate, if no op is in `REST`), with a rule for
every group that has another candidate. A rule sets only the fields that differ.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuronjax.diagnostics.precision_groups import CONTRACTIONS, Groups
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.policy import Policy, Rule

#: The default candidates, the cheapest first; the last one is the baseline.
DEFAULT_CANDIDATES = ("mxfp4", "mxfp8", "fp8", "bf16", "tf32", "fp32")
#: The index of the candidate of every group.
Assignment = tuple[int, ...]

_OF_CASTS = ("auto_cast_type", "cotangent_type", "scaling")
_OF_CONTRACTIONS = frozenset(
    {"auto_cast", *_OF_CASTS, "psum_dtype", "fp32_model", "sparsity", "overflow"}
    | {"mx_scale_rule", "mx_weight_scale_rule", "mx_layout", "amax_history_length"}
    | {"accumulation", "rounding", "mx_emax"}
)
_RULED = frozenset(f.name for f in dataclasses.fields(Rule))


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The candidates that a group may get, the cheapest first, the baseline last."""

    names: tuple[str, ...]
    policies: tuple[Policy, ...]

    @classmethod
    def of(cls, given: Sequence[str | Policy]) -> Candidates:
        """Return candidates from `given`: names of presets, and policies with a name.

        Raises:
            InvalidProgramError: there are fewer than two candidates; a candidate has no
                name, or has rules; two candidates have the same name or value, or
                differ in a field that a rule cannot set.
            UnsupportedError: a candidate has delayed scaling.
        """
        policies = tuple(map(Policy.resolve, given))
        if len(policies) < 2:
            raise InvalidProgramError(
                f"{len(policies)} candidates",
                remedy="give at least two, the baseline last: "
                'candidates=["fp8", "bf16", "fp32"]',
            )
        names = tuple(_name(policy) for policy in policies)
        for i, policy in enumerate(policies):
            if policy in policies[:i] or names[i] in names[:i]:
                raise InvalidProgramError(
                    f"the candidate {names[i]!r} is given twice",
                    remedy="give this candidate once",
                )
        found = cls(names=names, policies=policies)
        for name in found.differing:
            values = [getattr(policy, name) for policy in policies]
            if name not in _RULED or None in values:
                raise InvalidProgramError(
                    f"candidates differ in Policy.{name}, which a rule cannot state",
                    remedy="give all candidates the same value",
                )
        return found

    def only(self, kept: Sequence[int]) -> Candidates:
        return Candidates(
            names=tuple(self.names[i] for i in kept),
            policies=tuple(self.policies[i] for i in kept),
        )

    @property
    def differing(self) -> tuple[str, ...]:
        """Return the fields in which any two candidates differ."""
        first = self.policies[0]
        names = (field.name for field in dataclasses.fields(first) if field.compare)
        return tuple(
            n
            for n in names
            if any(getattr(p, n) != getattr(first, n) for p in self.policies)
        )

    def can_change(self, op: str) -> bool:
        """Return whether the candidates may change ops called `op`."""
        if any(policy.auto_cast == "all" for policy in self.policies):
            return True
        return op in CONTRACTIONS or not _OF_CONTRACTIONS.issuperset(self.differing)

    def policy(self, groups: Groups, assignment: Assignment) -> Policy:
        """Return the policy that gives every group its candidate of `assignment`."""
        counts = Counter(assignment)
        most = max(counts, key=lambda chosen: (counts[chosen], chosen))
        has_rest = groups.groups[0].selectors is None
        base = self.policies[assignment[0] if has_rest else most]
        rules = []
        for group, chosen in zip(groups.groups, assignment, strict=True):
            policy = self.policies[chosen]
            if group.selectors is not None and (groups.overlap or policy != base):
                rules.append(Rule(**group.selectors, **self._overrides(policy, base)))
        name = "searched" if rules else base.name
        return dataclasses.replace(base, rules=tuple(rules), name=name)

    def _overrides(self, policy: Policy, base: Policy) -> dict[str, Any]:
        """Return the fields of `policy` that differ from `base`; omit the types of
        casts if `policy` has no casts."""
        names = [n for n in self.differing if getattr(policy, n) != getattr(base, n)]
        if policy.auto_cast == "none":
            names = [name for name in names if name not in _OF_CASTS]
        return {name: getattr(policy, name) for name in names or ["auto_cast"]}


def _name(policy: Policy) -> str:
    if policy.rules:
        raise InvalidProgramError(
            f"the candidate {policy.name!r} has rules, which the search itself makes",
            remedy="give candidates without rules, and groups=... for their patterns",
        )
    if policy.scaling == "delayed":
        raise UnsupportedError(
            f"the candidate {policy.name!r} has delayed scaling, which needs the amax "
            "history of earlier steps",
            remedy='use scaling="current"',
        )
    return policy.named()


def policy_code(policy: Policy) -> str:
    """Return Python code that creates the policy."""
    given = {n: v for n, v in policy.given.items() if n not in ("rules", "name")}
    fields = [f"    {name}={value!r}," for name, value in given.items()]
    rules = [f"        nj.{rule!r}," for rule in policy.rules]
    if rules:
        fields += ["    rules=(", *rules, "    ),"]
    return "\n".join(["nj.Policy(", *fields, ")"]) if fields else "nj.Policy()"
