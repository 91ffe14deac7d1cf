"""`compare_dump`: tensors of a real chip or another framework beside a program.

The program is captured here; `diagnostics.dumps` reads the tensors and compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from neuronjax.api.asked import Askable, Asked, arrays_of, check_real, output_names
from neuronjax.api.compare import setting_of
from neuronjax.diagnostics.dumps.comparing import DumpWalk
from neuronjax.diagnostics.dumps.dump_result import DumpComparison
from neuronjax.diagnostics.dumps.matching import matched, named_values
from neuronjax.diagnostics.dumps.reading import Dump, read_dump
from neuronjax.diagnostics.tolerance.model import error_model
from neuronjax.policy import Policy, Preset


def compare_dump(
    function: Askable,
    dump: Dump,
    *,
    target: str | None = None,
    policy: Preset | str | Policy | None = None,
    names: Mapping[str, str] | None = None,
    functions: str | Mapping[str, float] = "silicon",
    failure: float = 1e-12,
    samples: int | None = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., DumpComparison]:
    """Find the op at which tensors that were saved elsewhere exceed their error bounds.

    Every saved tensor that is a value of the program is compared with the bounds of
    `tolerance`. Later values are computed from the saved tensor, so an error is
    located where it occurs, among the ops since the last known tensors.

        found = nj.compare_dump(forward, "device.safetensors", policy="bf16")(params, x)
        print(found)

    A tensor is matched by its name: the path of an output or argument, a module and an
    op of the name stack ("mlp/dot_general"), or a module alone for the last value that
    it computes. Separators and a final "output" are ignored, and one name may be the
    end of the other. Without a common name, shape and dtype must be unique on both
    sides. Values inside a loop have no tensor, because they are computed many times.

    Args:
        function: as `compare`. A PyTorch model is its exported StableHLO:
            `nj.load("model.mlir", policy="bf16")`.
        dump: a mapping from names to arrays; or a path: `.npy`, `.npz`, `.safetensors`,
            or a folder of `.npy`. Files are untrusted; none is unpickled. A tensor with
            a narrower format than in the program is assumed to be rounded for the file.
        target: as `compare`.
        policy: as `compare`.
        names: for each tensor whose name matches no value, the name of its value. The
            result's `.tensors` and messages show the names of values.
        functions: as `tolerance`.
        failure: as `tolerance`.
        samples: as `tolerance`.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns the `DumpComparison`.

    Raises:
        InvalidProgramError: an unreadable file or no tensor; when called, `names` that
            do not exist.
        UnsupportedError: when called, as `tolerance`.
        UnimplementedError: when called, an op without a rule.
    """
    model = error_model("fp32", None, "fp32", functions, failure)
    tensors = read_dump(dump)
    static = dict(static_argnums=static_argnums, static_argnames=static_argnames)
    asked = Asked.of(function, target=target, policy=policy, **static)

    def compared(*args: Any, **kwargs: Any) -> DumpComparison:
        captured = asked.captured(*args, **kwargs)
        check_real(captured, "bounds of complex numbers")
        program = captured.program
        values = named_values(program, output_names(captured))
        matches, unmatched = matched(tensors, values, names or {})
        side = setting_of(asked, program).emulated(asked.policy)
        walk = DumpWalk(program, side, model, matches, samples)
        with captured.outside():
            found = walk.run(arrays_of(captured))
        return DumpComparison(
            **asked.words,
            tensors=tuple(found),
            unmatched=tuple(unmatched),
            values=len(values),
        )

    return compared
