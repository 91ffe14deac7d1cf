"""The function of a precision search: captured once, lowered, priced and run.

Programs run op by op, because ops that two policies have in common are then compiled
once. They run from the lowering that was priced: nothing is captured or lowered again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from neuronjax.api.asked import Asked
from neuronjax.api.calls import CallState, may_round_stochastically
from neuronjax.api.lowered import Lowered
from neuronjax.api.profile import profile
from neuronjax.capture.mesh_context import MeshContext
from neuronjax.capture.trace import abstract
from neuronjax.diagnostics.precision_groups import (
    Groups,
    HeardOp,
    ListeningPolicy,
    find_groups,
)
from neuronjax.diagnostics.precision_policies import Assignment, Candidates
from neuronjax.diagnostics.precision_trials import PricedPolicy, program_identity
from neuronjax.errors import InvalidProgramError, NeuronJaxError, UnsupportedError
from neuronjax.policy import Policy

#: Number of lowered programs that are cached.
_KEPT = 32
#: `fastest_mixture` tries no mixtures if there are more groups than this.
_MOST_MIXED = 16


@dataclass(frozen=True, kw_only=True)
class SearchedProgram:
    """The function of a search, captured for arguments of one type."""

    lower: Callable[[Policy], Lowered]
    timing: Mapping[str, Any]  # options of `profile`
    types: Any  # argument types; None if they do not determine the program
    results: Any  # pytree of the results' shapes and dtypes

    @classmethod
    def of(
        cls, asked: Asked, arguments: tuple[tuple, dict], timing: Mapping[str, Any]
    ) -> SearchedProgram:
        """Return the program of `asked` for arguments of these types."""
        args, kwargs = arguments
        lowered = asked.lowered(*args, **kwargs)

        # A small cache suffices: a policy that is run is run soon after it is priced.
        @functools.lru_cache(_KEPT)
        def lower(policy: Policy) -> Lowered:
            found = lowered.under(policy=policy)
            _ = found.captured.instructions  # raises if an op cannot be lowered
            return found

        captured = lowered.captured
        around = captured.emulation.around
        plain = around == MeshContext() == MeshContext.around()
        is_repeatable = plain and not asked.has_static_arguments
        return cls(
            lower=lower,
            timing=timing,
            types=_types(arguments) if is_repeatable else None,
            results=jax.tree.unflatten(captured.out_tree, captured.outputs),
        )

    def price(self, policy: Policy) -> PricedPolicy:
        """Return identity and predicted time of the instructions under a policy."""
        lowered = self.lower(policy)
        seconds = profile(lowered, **self.timing)().total_seconds
        return PricedPolicy(program_identity(lowered.captured.instructions), seconds)

    def heard(self, candidates: Candidates) -> list[HeardOp]:
        """Return the ops whose precision a candidate can change."""
        listening = ListeningPolicy.like(candidates.policies[-1])
        self.lower(listening)
        heard = [op for op in listening.heard if candidates.can_change(op.op)]
        if not heard:
            raise InvalidProgramError(
                "the program has no op whose precision a candidate can change",
                remedy="give a function with matmuls or convolutions, outside of any "
                "policy_scope; or candidates with auto_cast='all'",
            )
        return heard

    def supported(
        self, candidates: Candidates, groups: Groups, *, named: bool
    ) -> Candidates:
        """Return the candidates that the target supports for at least one group.

        Refuse a candidate that the target lacks if the caller `named` the candidates.
        Refuse all candidates if none of them changes an instruction."""
        last = len(candidates.names) - 1
        baseline = self._identity(candidates, groups, (last,) * len(groups.groups))
        kept, changes = [], False
        for number, name in enumerate(candidates.names[:-1]):
            exists, refusal = False, None
            for found in self._alone(candidates, groups, number):
                if isinstance(found, UnsupportedError):
                    refusal = found
                    continue
                exists = True
                if found != baseline:
                    changes = True
                    break
            if exists:
                kept.append(number)
            elif named and refusal is not None:
                raise UnsupportedError(
                    f"the candidate {name!r}: {refusal.what}",
                    op=refusal.op,
                    location=refusal.location,
                    remedy=f"leave this candidate out, or {refusal.remedy}",
                ) from refusal
        if not changes:
            raise InvalidProgramError(
                f"none of {', '.join(candidates.names)} changes an instruction of this "
                "program",
                remedy="bf16, fp16, tf32 and fp8 are casts of FP32 operands; give "
                "candidates that are narrower than the program's dtypes",
            )
        return candidates.only([*kept, last])

    def _alone(
        self, candidates: Candidates, groups: Groups, number: int
    ) -> Iterator[str | UnsupportedError]:
        """Yield, for each group, the identity of the program in which this group has
        candidate `number` and the other groups the baseline; or the program's error."""
        count, last = len(groups.groups), len(candidates.names) - 1
        for group in range(count):
            assignment = tuple(number if g == group else last for g in range(count))
            try:
                yield self._identity(candidates, groups, assignment)
            except UnsupportedError as error:
                yield error

    def _identity(
        self, candidates: Candidates, groups: Groups, assignment: tuple[int, ...]
    ) -> str:
        policy = candidates.policy(groups, assignment)
        return program_identity(self.lower(policy).captured.instructions)

    def op_by_op(self, policy: Policy, step: Any) -> Callable[..., Any]:
        """Return the function under a policy, with calls counted from 0. Arguments of
        other types than those of the lowered program are passed to `step`."""
        lowered = self.lower(policy)
        state = CallState("the searched function")
        stochastic = may_round_stochastically(policy)

        def run(*args: Any, **kwargs: Any) -> Any:
            index = state.next_index(stochastic, args, kwargs)
            with jax.disable_jit():
                if self.types != _types((args, kwargs)):
                    chosen = step.with_rounding_seed(index) if stochastic else step
                    return chosen(*args, **kwargs)
                captured = lowered.bound(*args, **kwargs)
                outcome = captured.execute(state.context(index), captured.inputs)
                return jax.tree.unflatten(captured.out_tree, outcome.results)

        return run


def fastest_mixture(
    lowered: Lowered, policies: Sequence[Policy], timing: Mapping[str, Any]
) -> tuple[Policy | None, float]:
    """Return a fast mixture of two policies, and the program's seconds under it.

    The search starts from each policy, and gives one module after the other the other
    policy if this is predicted to save time. Modules whose paths differ only in list
    indices get the same policy. The mixture is None if one policy alone is fastest. The
    seconds are 0 if there are too many modules or no rules can express a mixture."""
    named = [replace(policy, name=str(n)) for n, policy in enumerate(policies)]
    try:
        program = SearchedProgram.of(Asked.of(lowered), ((), {}), timing)
        candidates = Candidates.of(named)
        heard = program.heard(candidates)
        names = (re.escape(op.module) for op in heard if op.module)
        forms = dict.fromkeys(re.sub(r"(?<=/)\d+\b", r"\\d+", name) for name in names)
        found = find_groups(heard, {f: {"module": f"^{f}$"} for f in forms})
    except NeuronJaxError:
        return None, 0.0
    if len(found.groups) > _MOST_MIXED:
        return None, 0.0

    def priced(assignment: Assignment) -> tuple[float, Assignment]:
        policy = candidates.policy(found, assignment)
        return program.price(policy).seconds, assignment

    def improved(start: int) -> tuple[float, Assignment]:
        best = priced((start,) * len(found.groups))
        for n in range(len(found.groups)):
            _, now = best
            best = min(best, priced((*now[:n], 1 - start, *now[n + 1 :])))
        return best

    seconds, assignment = min(improved(0), improved(1))
    mixed = candidates.policy(found, assignment)
    return (mixed if mixed.rules else None), seconds


def _types(arguments: tuple[tuple, dict]) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(arguments)
    return list(map(abstract, leaves)), structure
