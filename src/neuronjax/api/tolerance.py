"""`tolerance`: how large the errors of a correct run on a chip can be.

`diagnostics.legal` computes the bounds of the captured and lowered program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from neuronjax.api.asked import Askable, Asked, arrays_of, check_real, output_names
from neuronjax.api.compare import setting_of
from neuronjax.diagnostics.legal.results import LegalResults, legal_output
from neuronjax.diagnostics.legal.walk import LegalWalk
from neuronjax.diagnostics.tolerance.drawn import Draw, sharpened
from neuronjax.diagnostics.tolerance.model import error_model
from neuronjax.policy import Policy, Preset


def tolerance(
    function: Askable,
    *,
    target: str | None = None,
    policy: Preset | str | Policy | None = None,
    functions: str | Mapping[str, float] = "silicon",
    failure: float = 1e-12,
    samples: int | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., LegalResults]:
    """Return bounds on the errors that a program's results may have on a chip.

    The program runs once, in float64, on values that carry the scale of their errors.
    If derivatives give little information, it also runs several times with random
    errors, and the smaller of the two bounds counts. The bounds allow for any order of
    sums, any tiles, array cells that add two or four products, passes of FP32 operands,
    tables of elementary functions, and results rounded once or twice. An error outside
    the bounds is not due to rounding: a missing term in a sum of 4,096 is detected. A
    cast of a number without error adds no error, unless the cast is stochastic.

        t = nj.tolerance(loss, policy="bf16")(params, batch)
        np.testing.assert_allclose(found, t.expected, atol=t.atol, rtol=0)
        print(t.check(found))

    Args:
        function: as `compare`.
        target: as `compare`.
        policy: as `compare`.
        functions: the root-mean-square relative errors of elementary functions:
            "silicon", as measured on chips (1.5e-5 for functions that nobody measured),
            or "emulated", those of this emulator. Or a mapping by name ("exp", "rsqrt",
            "sqrt", "reciprocal", "other").
        failure: the probability that a correct element is outside its bound.
        samples: the number of further runs, in which every rounding error is random:
            their results narrow the bounds. Each takes as long as the first run. None
            for 32 if derivatives alone give no bounds, or bounds above a 128th of an
            output (deep nets), else for 0.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns the `LegalResults`.

    Raises:
        InvalidProgramError: unknown target, policy or table, or a bad `failure`.
        UnsupportedError: when called, complex numbers, or a loop or branch whose
            condition compares numbers that are closer than their bounds.
        UnimplementedError: when called, an op without a rule.
    """
    model = error_model("fp32", None, "fp32", functions, failure)
    static = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    asked = Asked.of(function, target=target, policy=policy, **static)

    def bounded(*args: Any, **kwargs: Any) -> LegalResults:
        captured = asked.captured(*args, **kwargs)
        check_real(captured, "bounds of complex numbers")
        side = setting_of(asked, captured.program).emulated(asked.policy)
        walk = LegalWalk(side, model)
        with captured.outside():
            inputs = arrays_of(captured)
            results = walk.run(inputs)
            names, types = output_names(captured), captured.outputs
            triples = zip(results, names, types, strict=True)
            found = [legal_output(h, name, x.dtype, model) for h, name, x in triples]

            def run(draw: Draw) -> Iterable[tuple[int, Any]]:
                results = LegalWalk(side, model, draw=draw).run(inputs)
                return enumerate(held.values for held in results)

            bounds = {n: output.tolerance for n, output in enumerate(found)}
            bounds = sharpened(bounds, run, samples, failure)
        kept = ", ".join(sorted(walk.kept_in_float32))
        outputs = (replace(x, tolerance=bounds[n]) for n, x in enumerate(found))
        note = f"the reference computes these ops in FP32 too: {kept}"
        return LegalResults(
            **asked.words,
            outputs=tuple(outputs),
            failure=failure,
            tree=captured.out_tree,
            notes=(note,) if kept else (),
        )

    return bounded
