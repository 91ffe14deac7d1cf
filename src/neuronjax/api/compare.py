"""`compare`: every op of a function, emulated and in a reference.

The thin public face of `diagnostics.compare`: it captures, lowers the program under
both, and hands them over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.api.jit import Emulated, jit
from neuronjax.capture.artifacts import Source, read_artifact
from neuronjax.diagnostics.compare import (
    REFERENCES,
    Setting,
    compare_sides,
    default_tolerance,
    label,
)
from neuronjax.diagnostics.comparison import Comparison
from neuronjax.execution.transformations import is_key, split_complex
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.program import Program
from neuronjax.lowering.complex_program import holds_complex, real_indices, real_program
from neuronjax.policy import Policy

Reference = str | Policy


def compare(
    function: Callable[..., Any],
    *,
    target: str = "trn2",
    policy: str | Policy | None = None,
    reference: Reference = "float64",
    baseline: Reference | None = None,
    tolerance: float | None = None,
    explain: bool = True,
    rounding_seed: int = 0,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Comparison]:
    """What is wrong with a run, on which line, since when, why, and what to try.

    Without a `tolerance`, and against double precision, results are wrong that are
    farther off than the roundings of their formats, and what these make of the
    arguments, explain; the ops at fault are `.faults`. Any other reference, or a
    tolerance, asks where two runs first diverge: `.first_divergence`.

    The program is captured once. Each op runs emulated and in the reference, in
    isolation (fed the reference's values) and in accumulation (errors propagate), op by
    op and without keeping what is no longer read.

    Args:
        function: what `jax.jit` takes, or an `Emulated` function, which is compared
            for this target and policy and not for its own.
        target: as `neuronjax.jit`.
        policy: as `neuronjax.jit`.
        reference: "float64", every float in double precision whatever its declared
            format, or "float64_rounded", rounded to the declared format where that is
            narrower than FP32, as the program's own casts do; "float32", the program
            in FP32 with sums in the host's order; or a policy or preset: "fp32" is the
            chip's modelled FP32.
        baseline: a third view beside actual and reference, which is then what is
            expected: "float32" with `reference="bf16"`.
        tolerance: relative L2 error of an op's result, in accumulation, from which on
            the run has diverged. Default: none against double precision, any bit where
            the reference is the policy itself, else 0.1.
        explain: search the smallest set of ops that explains the first divergence; each
            trial is a run up to it.
        rounding_seed: the call index of stochastic rounding, the same on all sides.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns a `Comparison`.

    Raises:
        InvalidProgramError: unknown target, policy or reference.
        UnsupportedError: when called, delayed scaling.
    """
    chosen, reference = Policy.resolve(policy), _resolved(reference)
    wrapped = getattr(function, "__wrapped__", function)
    emulated = jit(
        wrapped if isinstance(function, Emulated) else function,
        target=target,
        policy=chosen,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )
    limit = default_tolerance(chosen, reference) if tolerance is None else tolerance
    options = dict(
        target=emulated.target,
        policy=chosen,
        reference=reference,
        baseline=None if baseline is None else _resolved(baseline),
        tolerance=limit,
        explain=explain,
        rounding_seed=rounding_seed,
        name=getattr(function, "__name__", "function"),
    )

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        captured = emulated.captured(*args, **kwargs)
        return compare_program(
            captured.program,
            _arrays(captured.inputs),
            results=_names(captured.out_tree),
            **options,
        )

    return compared


def compare_saved(
    source: Source,
    arguments: Sequence[Any],
    *,
    target: str = "trn2",
    policy: str | Policy | None = None,
    reference: Reference = "float64",
    tolerance: float | None = None,
    explain: bool = True,
) -> Comparison:
    """As `compare`, for a program saved in any format that `neuronjax.load` reads.

    Args:
        source: a path, the bytes or an open file.
        arguments: one array per argument of main.
        target: as `compare`.
        policy: as `compare`.
        reference: as `compare`.
        tolerance: as `compare`.
        explain: as `compare`.
    """
    artifact = read_artifact(source)
    chosen, reference = Policy.resolve(policy), _resolved(reference)
    return compare_program(
        artifact.program,
        _arrays(arguments),
        target=resolve_target(target),
        policy=chosen,
        reference=reference,
        tolerance=default_tolerance(chosen, reference)
        if tolerance is None
        else tolerance,
        explain=explain,
        name=artifact.name,
    )


def compare_program(
    program: Program,
    arrays: Sequence[Any],
    *,
    target: Target,
    policy: Policy,
    reference: Reference,
    tolerance: float | None,
    name: str,
    results: Sequence[str] = (),
    baseline: Reference | None = None,
    cotangents: frozenset[int] = frozenset(),
    explain: bool = True,
    rounding_seed: int = 0,
) -> Comparison:
    """As `compare`, of a captured program and the arrays that its lowering takes."""
    if holds_complex(program):
        cotangents = real_indices(program, cotangents)
        program = real_program(program, sdk=policy.sdk)
    setting = Setting(
        program=program,
        target=target,
        cotangents=cotangents,
        call_index=np.uint32(rounding_seed),  # type: ignore[arg-type]
    )
    return compare_sides(
        setting,
        setting.emulated(policy),
        setting.side(reference, policy),
        arrays,
        baseline=None if baseline is None else setting.side(baseline, policy),
        tolerance=tolerance,
        explain=explain,
        results=None if isinstance(reference, Policy) else results,
        names={
            "name": name,
            "target": target.name,
            "policy": label(policy),
            "reference": label(reference),
            "baseline": "" if baseline is None else label(baseline),
        },
    )


def _names(tree: Any) -> list[str]:
    """The path of every leaf of a pytree."""
    leaves = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths, _ = jax.tree.flatten_with_path(leaves)
    names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]
    return [name or "the result" for name in names]


# "fp32" is a policy: the chip's modelled FP32.
_SHORT = {"f32": "float32", "f64": "float64", "fp64": "float64"}


def _resolved(reference: Reference) -> Reference:
    """A reference by its own name, or a policy."""
    if isinstance(reference, str):
        reference = _SHORT.get(reference, reference)
        if reference in REFERENCES:
            return reference
    return Policy.resolve(reference)


def _arrays(leaves: Sequence[Any]) -> list[jax.Array]:
    """Arguments as a lowered program takes them."""
    plain = (jax.random.key_data(x) if is_key(x.dtype) else x for x in leaves)
    return split_complex([jnp.asarray(x) for x in plain])
