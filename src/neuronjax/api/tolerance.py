"""`tolerance`: how far a program's results may be off on a chip, and still be right.

The thin public face of `diagnostics.legal`: it captures, lowers the program under its
policy, and hands it over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from neuronjax.api.jit import Emulated, jit
from neuronjax.api.lowered import Lowered
from neuronjax.api.signatures import function_name
from neuronjax.diagnostics.compare import Setting, label
from neuronjax.diagnostics.legal.results import LegalOutput, LegalResults, legal_output
from neuronjax.diagnostics.legal.samples import (
    SAMPLES,
    Spread,
    drawn,
    generators,
    is_wide,
    narrowed,
)
from neuronjax.diagnostics.legal.walk import LegalWalk
from neuronjax.diagnostics.parallel_runs import Side
from neuronjax.diagnostics.tolerance.model import ErrorModel, error_model
from neuronjax.errors import InvalidProgramError, UnsupportedError
from neuronjax.execution.captured import CapturedProgram
from neuronjax.execution.transformations import is_key
from neuronjax.lowering.complex_program import holds_complex
from neuronjax.policy import Policy
from neuronjax.report.setting import setting_line


def tolerance(
    function: Callable[..., Any] | Lowered,
    *,
    target: str = "trn2",
    policy: str | Policy | None = None,
    functions: str | Mapping[str, float] = "silicon",
    failure: float = 1e-12,
    samples: int | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., LegalResults]:
    """How far off a program's results may be on a chip, and still be right.

    The program runs once, in float64, on values that carry the scale of their errors,
    and where slopes then say little, some more times with errors that are drawn: the
    smaller of what both say is the bound. Within the bounds is whatever order sums are
    added in, tiles, pairs and quads of a cell, passes of FP32 operands, tables of
    elementary functions, and results that are rounded once or twice. What is outside
    is no rounding: of a sum of 4,096 terms one that is missing shows. Casts that policy
    or program ask for are made, not bounded, where a number has no error yet.

        t = nj.tolerance(loss, policy="bf16")(params, batch)
        np.testing.assert_allclose(found, t.expected, atol=t.atol, rtol=0)
        print(t.check(found))

    Args:
        function: what `jax.jit` takes, an `Emulated` function, or an `nj.Lowered`
            program, which keeps its own target and policy.
        target: as `neuronjax.jit`.
        policy: as `neuronjax.jit`.
        functions: relative errors of elementary functions, root mean square:
            "silicon", as measured on chips; "emulated", this emulator's own; or a
            mapping by name ("exp", "rsqrt", "sqrt", "reciprocal", "other").
        failure: probability that one legal element is refused.
        samples: how many runs with errors that are drawn narrow the bounds; each takes
            as long as the first run. None for 32 where slopes alone bound an output by
            more than a 128th of it, or not at all, as they do of deep networks, and for
            none else.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns the `LegalResults`.

    Raises:
        InvalidProgramError: unknown target, policy or table, or no probability.
        UnsupportedError: when called, delayed scaling, complex numbers, or a loop or
            branch that depends on numbers which are closer than their bounds.
        UnimplementedError: when called, an op without a rule.
    """
    model = error_model("fp32", None, "fp32", functions, failure)
    capture = capturer(function, target, policy, static_argnums, static_argnames)

    def bounded(*args: Any, **kwargs: Any) -> LegalResults:
        captured, inputs, emulated = capture(*args, **kwargs)
        check_real(captured)
        side = setting_of(captured, emulated.target).emulated(emulated.policy)
        walk = LegalWalk(side, model)
        results = walk.run(inputs)
        names = output_names(captured)
        found = [
            legal_output(held, name, of.dtype, model)
            for held, name, of in zip(results, names, captured.outputs, strict=True)
        ]
        outputs = _narrowed(found, side, model, inputs, samples)
        return LegalResults(
            name=name_of(function),
            target=emulated.target.name,
            policy=label(emulated.policy),
            setting=setting_line(emulated.target, emulated.policy),
            outputs=tuple(outputs),
            failure=failure,
            tree=tree_of(captured),
            notes=_notes(walk),
        )

    return bounded


def _narrowed(
    outputs: Sequence[LegalOutput],
    side: Side,
    model: ErrorModel,
    inputs: Sequence[Any],
    samples: int | None,
) -> list[LegalOutput]:
    """The outputs with what sampled runs say of them."""
    if samples is None:
        samples = SAMPLES if any(map(is_wide, outputs)) else 0
    if not samples:
        return [*outputs]
    spreads = [Spread(output.expected) for output in outputs]
    for generator in generators(samples):
        draw = functools.partial(drawn, generator=generator)
        results = LegalWalk(side, model, draw=draw).run(inputs)
        for spread, held in zip(spreads, results, strict=True):
            spread.add(held.values)
    pairs = zip(outputs, spreads, strict=True)
    return [narrowed(output, spread, model) for output, spread in pairs]


def _notes(walk: LegalWalk) -> tuple[str, ...]:
    kept = sorted(walk.kept_in_float32)
    return (f"FP32 in the reference too: {', '.join(kept)}",) if kept else ()


# -- what `compare_dump` shares --------------------------------------------------------

#: Of a call: the program, its arrays, and who has target and policy.
Captured = tuple[CapturedProgram, list[jax.Array], Any]


def capturer(
    function: Callable[..., Any] | Lowered,
    target: str,
    policy: str | Policy | None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Captured]:
    """What captures a function's program for arguments; a lowered one has its own."""
    if isinstance(function, Lowered):
        lowered = function

        def of_lowered(*args: Any, **kwargs: Any) -> Captured:
            arrays = arrays_of(jax.tree.leaves((args, kwargs)))
            captured = lowered.captured
            _check_types(arrays, captured.inputs, lowered.name)
            kept = captured.kept
            if kept is not None:  # an export drops what the program does not read
                arrays = [arrays[n] for n in kept]
            return captured, arrays, lowered

        return of_lowered
    emulated = jit(
        getattr(function, "__wrapped__", function)
        if isinstance(function, Emulated)
        else function,
        target=target,
        policy=Policy.resolve(policy),
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    ).reported()

    def of_function(*args: Any, **kwargs: Any) -> Captured:
        captured = emulated.captured(*args, **kwargs)
        return captured, arrays_of(captured.inputs), emulated

    return of_function


def _check_types(arrays: Sequence[Any], wanted: Sequence[Any], name: str) -> None:
    """Refuses arguments that a saved program does not take."""
    found, needed = ([_type_text(x) for x in xs] for xs in (arrays, wanted))
    pairs = [*zip(found, needed, strict=False)]
    keys = [is_key(x.dtype) for x in wanted]  # whose arrays are their words
    fits = all(key or x == y for key, (x, y) in zip(keys, pairs, strict=False))
    if len(found) != len(needed) or not fits:
        raise InvalidProgramError(
            f"arguments {', '.join(found) or 'without any array'}",
            op=name,
            remedy=f"give {len(needed)} arrays: {', '.join(needed)}",
        )


def _type_text(x: Any) -> str:
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


def arrays_of(leaves: Sequence[Any]) -> list[jax.Array]:
    """Arguments as a lowered program takes them."""
    plain = (jax.random.key_data(x) if is_key(x.dtype) else x for x in leaves)
    return [jnp.asarray(x) for x in plain]


def setting_of(captured: CapturedProgram, target: Any) -> Setting:
    """A captured program as the tools of comparisons take it."""
    return Setting(program=captured.program, target=target)


def check_real(captured: CapturedProgram) -> None:
    """Refuses programs with complex numbers."""
    if holds_complex(captured.program):
        raise UnsupportedError(
            "bounds of complex numbers",
            remedy="take real and imaginary parts as arguments of their own",
        )


def tree_of(captured: CapturedProgram) -> Any:
    """The tree of the outputs; a saved program without one has a tuple, or an array."""
    if captured.out_tree is not None:
        return captured.out_tree
    count = len(captured.outputs)
    return jax.tree.structure(0 if count == 1 else tuple(range(count)))


def output_names(captured: CapturedProgram) -> list[str]:
    """The path of every output."""
    tree = tree_of(captured)
    leaves = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths, _ = jax.tree.flatten_with_path(leaves)
    names = [jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in paths]
    return [name or "the result" for name in names]


def name_of(function: Any) -> str:
    """What a report calls a function or a program."""
    return getattr(function, "name", None) or function_name(function)
