"""`compare_dump`: tensors of a real chip or another framework beside a program.

The thin public face of `diagnostics.dumps`: it captures, reads the tensors, and hands
both over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from neuronjax.api.asked import Askable, Asked, arrays_of, check_real, output_names
from neuronjax.diagnostics.compare import Setting
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
    """Say at which op tensors that were saved elsewhere leave what is legal.

    Every tensor that is a value of the program is held against what `tolerance` allows
    there. What follows is computed from the tensor itself, so that an error is found
    where it is made, among the ops since the last tensors that are known.

        found = nj.compare_dump(forward, "device.safetensors", policy="bf16")(params, x)
        print(found)

    A tensor is matched by its name: an output's or an argument's path, a module and an
    op of the name stack ("mlp/dot_general"), or a module alone, which is the last value
    that it computes; separators and "output" at the end do not count, and of two names
    one may be the end of the other. Without a name in common, shape and dtype must be
    unique on both sides. What is inside a loop runs often and has no tensor.

    Args:
        function: as `compare`. A PyTorch model is its exported StableHLO:
            `nj.load("model.mlir", policy="bf16")`.
        dump: a mapping from names to arrays; or a path: `.npy`, `.npz`, `.safetensors`,
            or a folder of `.npy`. Files are untrusted; none is unpickled. A tensor in a
            narrower format than the program's was rounded to it when it was saved.
        target: as `compare`.
        policy: as `compare`.
        names: tensor to value, where names do not say it; names of values are those of
            the result's `.tensors` and of messages.
        functions: as `tolerance`.
        failure: as `tolerance`.
        samples: as `tolerance`.
        static_argnums: as `jax.jit`.
        static_argnames: as `jax.jit`.

    Returns:
        A function of the same arguments that returns the `DumpComparison`.

    Raises:
        InvalidProgramError: a file that cannot be read, no tensor, or when called
            `names` that are not there.
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
        setting = Setting(
            program=program, target=asked.target, amax_history=asked.amax_history
        )
        side = setting.emulated(asked.policy)
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
