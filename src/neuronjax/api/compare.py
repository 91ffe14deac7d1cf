"""`compare`: every op of a function, emulated and in a reference.

The thin public face of `diagnostics.compare`: it captures, lowers the program under
both, and hands them over.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.api.jit import Emulated, jit
from neuronjax.api.signatures import function_name
from neuronjax.capture.artifacts import Artifact, Source, read_artifact
from neuronjax.diagnostics.compare import (
    REFERENCES,
    Setting,
    compare_sides,
    default_tolerance,
    label,
)
from neuronjax.diagnostics.comparison import Comparison
from neuronjax.diagnostics.edits.edit_result import ProgramComparison
from neuronjax.diagnostics.edits.programs import EditedProgram, compare_programs
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution import stages
from neuronjax.execution.captured import CapturedProgram
from neuronjax.execution.transformations import is_key, split_complex
from neuronjax.hardware import Target, resolve_target
from neuronjax.ir.program import Program
from neuronjax.lowering.complex_program import holds_complex, real_indices, real_program
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line

Reference = str | Policy


@overload
def compare(
    function: Callable[..., Any],
    *,
    against: None = None,
    target: str = ...,
    policy: str | Policy | None = ...,
    reference: Reference = ...,
    baseline: Reference | None = ...,
    tolerance: float | None = ...,
    explain: bool = ...,
    rounding_seed: int = ...,
    static_argnums: int | Iterable[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
) -> Callable[..., Comparison]: ...
@overload
def compare(
    function: Callable[..., Any],
    *,
    against: Callable[..., Any] | str | os.PathLike[str],
    target: str = ...,
    policy: str | Policy | None = ...,
    tolerance: float | None = ...,
    rounding_seed: int = ...,
    static_argnums: int | Iterable[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
) -> Callable[..., ProgramComparison]: ...
def compare(
    function: Callable[..., Any],
    *,
    against: Callable[..., Any] | str | os.PathLike[str] | None = None,
    target: str = "trn2",
    policy: str | Policy | None = None,
    reference: Reference = "float64",
    baseline: Reference | None = None,
    tolerance: float | None = None,
    explain: bool = True,
    rounding_seed: int = 0,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Comparison | ProgramComparison]:
    """What is wrong with a run, on which line, since when, why, and what to try.

    Without a `tolerance`, and against double precision, results are wrong that are
    farther off than the roundings of their formats, and what these make of the
    arguments, explain; the ops at fault are `.faults`. Any other reference, or a
    tolerance, asks where two runs first diverge: `.first_divergence`.

    With `against`, the question is another: what an edit has done. Both functions are
    captured and emulated under the one policy, on the same arguments. Their ops are
    aligned by what they compute and in which module (a longest common subsequence);
    what has no partner, reads other values or has other attributes is an edit. The
    first op whose values differ is named, with its line: an edit, or the consequence of
    those that it depends on. Outputs are compared by their paths.

        print(nj.compare(step, against=faster_step, policy="bf16")(params, batch))

    A saved program is compared likewise, as `against="golden/step.mlirbc"`: with what
    the function writes into modules, if it returns that too.

    The program is captured once. Each op runs emulated and in the reference, in
    isolation (fed the reference's values) and in accumulation (errors propagate), op by
    op and without keeping what is no longer read.

    Args:
        function: what `jax.jit` takes, or an `Emulated` function, which is compared
            for this target and policy and not for its own. What it writes into modules
            of Flax NNX is among its results, by the path of the argument.
        against: the function after an edit, or the path of a saved program, of the same
            arguments; it goes with `tolerance`, `rounding_seed` and the static
            arguments.
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
            the reference is the policy itself and with `against`, else 0.1.
        explain: search the smallest set of ops that explains the first divergence; each
            trial is a run up to it.
        rounding_seed: the call index of stochastic rounding, the same on all sides.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns a `Comparison`, with `against` a
        `ProgramComparison`.

    Raises:
        InvalidProgramError: unknown target, policy or reference; `against` with a
            reference or a baseline; a saved program of other arguments.
        UnsupportedError: when called, delayed scaling.
    """
    chosen, reference = Policy.resolve(policy), _resolved(reference)
    static: dict[str, Any] = dict(
        static_argnums=static_argnums, static_argnames=static_argnames
    )
    plain = _emulated(function, target, chosen, **static)
    emulated = plain.reported()
    if against is not None:
        _check_alone(reference, baseline)
        error = tolerance or 0.0
        other: Any = against
        if not isinstance(against, str | os.PathLike):
            other = (against, _emulated(against, target, chosen, **static))
        return _edited((function, plain), other, chosen, error, rounding_seed)
    limit = default_tolerance(chosen, reference) if tolerance is None else tolerance
    name = function_name(function)
    options: dict[str, Any] = dict(
        target=emulated.target,
        policy=chosen,
        reference=reference,
        baseline=None if baseline is None else _resolved(baseline),
        tolerance=limit,
        explain=explain,
        rounding_seed=rounding_seed,
        name=name,
    )

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        with stages.watching(f"{name} on {emulated.target.name}"):
            captured = emulated.captured(*args, **kwargs)
            return compare_program(
                captured.program,
                _arrays(captured.inputs),
                results=_names(captured.out_tree),
                **options,
            )

    return compared


def _emulated(function: Any, target: str, policy: Policy, **static: Any) -> Emulated:
    """A function under this target and policy, whatever its own were."""
    wrapped = getattr(function, "__wrapped__", function)
    plain = wrapped if isinstance(function, Emulated) else function
    return jit(plain, target=target, policy=policy, **static)


def _check_alone(reference: Reference, baseline: Reference | None) -> None:
    """Refuses a reference beside another program."""
    if reference != "float64" or baseline is not None:
        raise InvalidProgramError(
            "`against` is another program under the same policy, and has no reference",
            op="compare",
            remedy="leave reference= and baseline= out, or compare each with its own",
        )


def _edited(
    first: tuple[Any, Emulated],
    other: tuple[Any, Emulated] | str | os.PathLike[str],
    policy: Policy,
    tolerance: float,
    rounding_seed: int,
) -> Callable[..., ProgramComparison]:
    """What compares two functions, or a function and a saved program, on arguments."""
    function, emulated = first
    name = function_name(function)

    def compared(*args: Any, **kwargs: Any) -> ProgramComparison:
        def of(function: Any, emulated: Emulated) -> EditedProgram:
            captured = emulated.reported().captured(*args, **kwargs)
            return _edited_program(function, captured, emulated.target, rounding_seed)

        def as_saved(artifact: Artifact) -> EditedProgram:
            count = len(artifact.program.entry.body.results)
            captured = _with_results(count, emulated, args, kwargs)
            saved = read_artifact(captured.portable()).program
            names = captured.emulation.names  # which rules of the policy name
            saved = dataclasses.replace(saved, argument_names=names)
            captured = dataclasses.replace(captured, program=saved)
            return _edited_program(function, captured, emulated.target, rounding_seed)

        with stages.watching(f"{name} on {emulated.target.name}"):
            if isinstance(other, tuple):
                before, after = of(function, emulated), of(*other)
            else:
                artifact = read_artifact(other)
                before = as_saved(artifact)
                after = _saved(artifact, before)
            return compare_programs(before, after, policy, tolerance, label(policy))

    return compared


def _with_results(
    count: int, emulated: Emulated, args: tuple, kwargs: dict
) -> CapturedProgram:
    """A function as a saved program of so many results has it: what it writes into
    modules, which a golden holds, is among them or not."""
    captured = emulated.reported().captured(*args, **kwargs)
    if len(captured.outputs) == count:
        return captured
    return emulated.captured(*args, **kwargs)


def _edited_program(
    function: Any, captured: CapturedProgram, target: Target, rounding_seed: int
) -> EditedProgram:
    program, outputs = captured.program, _names(captured.out_tree)
    _check_real(program)
    setting = Setting(
        program=program,
        target=target,
        call_index=np.uint32(rounding_seed),  # type: ignore[arg-type]
    )
    name = function_name(function)
    arrays = _arrays(captured.inputs)
    return EditedProgram(name=name, setting=setting, arrays=arrays, outputs=outputs)


def _saved(artifact: Artifact, like: EditedProgram) -> EditedProgram:
    """A saved program on the arguments of a function, under its setting."""
    _check_real(artifact.program)
    given, taken = (
        [str(v.type) for v in program.entry.body.arguments]
        for program in (like.setting.program, artifact.program)
    )
    if given != taken:
        raise InvalidProgramError(
            f"{artifact.name} takes {', '.join(taken)}, the function "
            f"{', '.join(given)}",
            op="compare",
            remedy="give arguments of the types that the program was saved for",
        )
    names = like.setting.program.argument_names
    program = dataclasses.replace(artifact.program, argument_names=names)
    count = len(program.entry.body.results)
    outputs = like.outputs
    if len(outputs) != count:
        outputs = [f"result {n}" for n in range(count)]
    setting = dataclasses.replace(like.setting, program=program)
    return dataclasses.replace(
        like, name=artifact.name, setting=setting, outputs=outputs
    )


def _check_real(program: Program) -> None:
    if holds_complex(program):
        raise UnsupportedError(
            "comparing two programs with complex numbers",
            op="compare",
            remedy="compare each with its float64 reference",
        )


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
    machine = resolve_target(target)
    with stages.watching(f"{artifact.name} on {machine.name}"):
        return compare_program(
            artifact.program,
            _arrays(arguments),
            target=machine,
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
            "setting": setting_line(target, policy),
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
