"""`compare`: every op of a function, emulated and in a reference.

The program is captured here, lowered for the emulation and the reference, and compared
by `diagnostics.compare`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import numpy as np

from neuronjax.api.asked import (
    Askable,
    Asked,
    arrays_of,
    check_real,
    output_names,
    read_program,
    shared_setting,
)
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
from neuronjax.diagnostics.parallel_runs import Side
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.captured import CapturedProgram
from neuronjax.ir.own_callees import with_own_callees
from neuronjax.ir.program import Program
from neuronjax.lowering.complex_program import real_program
from neuronjax.policy import Policy, Preset

Reference = str | Policy


@overload
def compare(
    function: Askable,
    *,
    against: None = None,
    target: str | None = ...,
    policy: Preset | str | Policy | None = ...,
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
    function: Askable,
    *,
    against: Askable,
    target: str | None = ...,
    policy: Preset | str | Policy | None = ...,
    tolerance: float | None = ...,
    rounding_seed: int = ...,
    static_argnums: int | Iterable[int] | None = ...,
    static_argnames: str | Iterable[str] | None = ...,
) -> Callable[..., ProgramComparison]: ...
def compare(
    function: Askable,
    *,
    against: Askable | None = None,
    target: str | None = None,
    policy: Preset | str | Policy | None = None,
    reference: Reference = "float64",
    baseline: Reference | None = None,
    tolerance: float | None = None,
    explain: bool = True,
    rounding_seed: int = 0,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Comparison | ProgramComparison]:
    """Find what is wrong with a run: source lines, first divergence, causes, remedies.

    Without `tolerance`, and against double precision, a result is wrong if its error is
    not explained by the roundings of its format and of the arguments; the ops at fault
    are `.faults`. With another reference or with a `tolerance`, `.first_divergence` is
    the op at which the two runs first diverge.

    With `against`, the comparison locates where two programs that should have equal
    results diverge. Both are captured and emulated under one policy, on the same
    arguments. Values of the two programs are matched if both return them under the same
    name, if the same op computes them from matched values, if their elements are equal,
    or if one line computes both; parts of an array on several devices are first joined.
    Values that differ are named with their source lines in both programs. The ops are
    also aligned by a longest common subsequence, and the edits are listed:

        print(nj.compare(step, against=faster_step, policy="bf16")(params, batch))

    A saved program can be given too, as `against="golden/step.mlirbc"`. What the
    function writes into modules is compared if the saved program returns it as well.

    As under `jax.jit`, the function is traced at the first call, and again if the types
    of the arguments, a static argument or a setting of JAX differ from those of the
    previous call. Values that it closes over keep their first value. Each op runs
    emulated and in the reference, both in isolation (on the reference's values) and in
    accumulation (errors propagate). A value is dropped after its last use, to save
    memory.

    Args:
        function: a function as for `jax.jit`, a function of `neuronjax.jit`, a program
            of `neuronjax.load` or of `lower`, or the path of a saved program. What a
            function writes into modules of Flax NNX is among its results, by the path
            of the argument.
        against: a second program with the same arguments, such as `function` after an
            edit; `tolerance`, `rounding_seed` and the static arguments apply to both.
        target: as `neuronjax.jit`; None for the function's, or "trn2" if it has none.
        policy: as `neuronjax.jit`; None for the function's own, else the SDK's default.
        reference: "float64": every float in double precision whatever its declared
            format; "float64_rounded": double precision, with each result rounded to its
            declared format if this is narrower than FP32; "float32": FP32 on the host,
            with sums in the host's order; or a policy or preset, such as "fp32", the
            chip's modelled FP32.
        baseline: a third run whose errors are shown beside the emulation's, for
            comparison: "float32" with `reference="bf16"`, for example.
        tolerance: the largest allowed relative L2 error of an op in the run; None for
            limits that follow from the roundings if the reference is in float64, 0 if
            there is a second program or the reference is the policy itself, else 0.1.
        explain: search the smallest set of ops that explains the first divergence, by
            runs up to that point, and try remedies on the first ops at fault.
        rounding_seed: the call index of stochastic rounding, the same in all runs.
            Delayed scaling reads the history that the function was given
            (`with_amax_history`); without one its scales are 1, as in a first step.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns a `Comparison`, or with `against`
        a `ProgramComparison`.

    Raises:
        InvalidProgramError: unknown target, policy or reference; `against` together
            with a reference or baseline; two programs whose targets or policies
            differ, without `target` or `policy`; a saved program with other arguments.
    """
    reference = _resolved(reference)
    static: Any = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    if against is not None:
        if reference != "float64" or baseline is not None:
            raise InvalidProgramError(
                "against= compares two programs under one policy, without a reference",
                op="compare",
                remedy="leave reference= and baseline= out, or compare each program"
                " with its reference in a call without against=",
            )
        given = {"target": target, "policy": policy}
        setting = shared_setting((function, against), given)
        asked = Asked.of(function, **setting, **static)
        return _edited(asked, against, tolerance or 0.0, rounding_seed, static)
    asked = Asked.of(function, target=target, policy=policy, **static)
    other = baseline and _resolved(baseline)
    if tolerance is None:
        tolerance = default_tolerance(asked.policy, reference)
    # Keep the lowered programs and their executors for the next call.
    sides = functools.lru_cache(maxsize=1)(
        functools.partial(_sides, asked, rounding_seed, reference, other)
    )

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        with asked.watching():
            captured = asked.captured(*args, **kwargs)
            with captured.outside():
                setting, actual, referred, third = sides(captured.program, asked.policy)
                return compare_sides(
                    setting,
                    actual,
                    referred,
                    arrays_of(captured),
                    tolerance=tolerance,
                    baseline=third,
                    explain=explain,
                    results=None
                    if isinstance(reference, Policy)
                    else output_names(captured),
                    names={
                        **asked.words,
                        "reference": label(reference),
                        "baseline": label(other) if other else "",
                    },
                )

    return compared


def _sides(
    asked: Asked,
    rounding_seed: int,
    reference: Reference,
    baseline: Reference | None,
    program: Program,
    policy: Policy,
) -> tuple[Setting, Side, Side, Side | None]:
    """Return the program's setting, and the program lowered for the emulation, the
    reference and the baseline."""
    if program.holds_complex():
        program = real_program(program, sdk=policy.sdk)
    setting = setting_of(asked, with_own_callees(program), np.uint32(rounding_seed))
    third = None if baseline is None else setting.side(baseline, policy)
    return setting, setting.emulated(policy), setting.side(reference, policy), third


def setting_of(asked: Asked, program: Program, call_index: Any = None) -> Setting:
    """Return the setting in which the program of `asked` is run op by op."""
    return Setting(
        program=program,
        target=asked.target,
        call_index=call_index,
        amax_history=asked.amax_history,
    )


def _edited(
    asked: Asked,
    against: Askable,
    tolerance: float,
    rounding_seed: int,
    static: Mapping[str, Any],
) -> Callable[..., ProgramComparison]:
    policy, own = asked.policy, {"target": asked.target.name}
    is_saved = isinstance(against, str | os.PathLike)
    other = Asked.of(against, policy=policy, **own, **static)

    def of(asked: Asked, captured: CapturedProgram) -> EditedProgram:
        check_real(captured, "comparing two programs with complex numbers")
        return EditedProgram(
            name=asked.name,
            setting=setting_of(asked, captured.program, np.uint32(rounding_seed)),
            arrays=arrays_of(captured),
            outputs=output_names(captured),
        )

    def compared(*args: Any, **kwargs: Any) -> ProgramComparison:
        with asked.watching():
            captured = asked.captured(*args, **kwargs)
            if is_saved:
                after = other.captured()
                if len(captured.outputs) != len(after.outputs):
                    # A program may have been saved without the state of modules.
                    captured = asked.captured(*args, _alone=True, **kwargs)
                program = read_program(captured.portable(), captured.emulation.names)
                captured = dataclasses.replace(captured, program=program)
                after = _with_arguments(after, captured)
            else:
                after = other.captured(*args, **kwargs)
            with captured.outside():
                pair = of(asked, captured), of(other, after)
                return compare_programs(*pair, policy, tolerance, label(policy))

    return compared


def _with_arguments(saved: CapturedProgram, like: CapturedProgram) -> CapturedProgram:
    taken, given = (
        ", ".join(str(v.type) for v in each.program.entry.body.arguments)
        for each in (saved, like)
    )
    if given != taken:
        raise InvalidProgramError(
            f"{saved.emulation.name} takes {taken}, but the function takes {given}",
            op="compare",
            remedy="give arguments of the types that the program was saved for",
        )
    same = len(saved.outputs) == len(like.outputs)
    names = like.program.argument_names
    return dataclasses.replace(
        like if same else saved,
        inputs=like.inputs,
        program=dataclasses.replace(saved.program, argument_names=names),
    )


# "fp32" is a policy: the chip's modelled FP32.
_SHORT = {"f32": "float32", "f64": "float64", "fp64": "float64"}


def _resolved(reference: Reference) -> Reference:
    if isinstance(reference, str):
        reference = _SHORT.get(reference, reference)
        if reference in REFERENCES:
            return reference
    return Policy.resolve(reference)
