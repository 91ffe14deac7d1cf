"""The program of a golden, as it is captured, read back and run.

The program runs as it is read back from its portable form, because saving may move
constants, which changes the bits of stochastic rounding. The interpreter runs it,
without JAX's transformations such as `jax.grad`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.api.asked import Asked, read_program
from neuronjax.api.jit import NATIVE_JIT
from neuronjax.diagnostics.edits.changed_attributes import CONSTANT
from neuronjax.execution import interpreter, transformations
from neuronjax.execution.inputs_outputs import CallContext
from neuronjax.hardware import resolve_target
from neuronjax.ir.program import Program
from neuronjax.policy import Policy
from neuronjax.testing.bits import as_numpy, path_text
from neuronjax.testing.golden_file import GoldenFile, Leaf
from neuronjax.testing.inputs import drawn
from neuronjax.testing.source_lines import SourceLines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Today:
    """The program and the arguments of a golden's function as they are now."""

    code: bytes  # the portable artifact
    program: Program  # read back from it, like the stored program
    target: str
    policy: Policy
    inputs: tuple[np.ndarray, ...]
    leaves: tuple[Leaf, ...]  # descriptions of the inputs
    out_paths: tuple[str, ...]
    sources: SourceLines  # the functions from which the program's ops come

    @classmethod
    def of(
        cls,
        asked: Asked,
        args: tuple,
        kwargs: dict,
        seed: int = 0,
        with_inputs: bool = True,
    ) -> Today:
        """Capture a function; draw values from the seed for `ShapeDtypeStruct`s."""
        captured = asked.captured(*args, **kwargs)
        emulation, leaves = captured.emulation, captured.inputs
        code = captured.portable()
        outputs = jax.tree.unflatten(captured.out_tree, captured.outputs)
        paths, _ = jax.tree.flatten_with_path(outputs)
        given = zip(emulation.names, leaves, strict=True) if with_inputs else ()
        inputs = [_input(path, leaf, seed, n) for n, (path, leaf) in enumerate(given)]
        places = (op.location for op in captured.program.walk() if op.name != CONSTANT)
        return cls(
            code=code,
            program=read_program(code, emulation.names),
            target=emulation.target.name,
            policy=emulation.policy,
            inputs=tuple(array for array, _ in inputs),
            leaves=tuple(leaf for _, leaf in inputs),
            out_paths=tuple(path_text(path) for path, _ in paths),
            sources=SourceLines.of((p.file, p.line) for p in places if p.file),
        )


def _input(path: str, leaf: Any, seed: int, number: int) -> tuple[np.ndarray, Leaf]:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        array = drawn(leaf, path, seed, number)
        return array, Leaf.of(path, array, seed)
    array = as_numpy(leaf)
    return array, Leaf.of(path, array)


def run(
    program: Program,
    target: str,
    policy: Policy,
    rounding_seed: int,
    inputs: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Return a program's flat results; an amax history comes last."""
    names, machine = program.argument_names, resolve_target(target)
    emulation = transformations.Emulation(
        function=lambda *_: [], names=names, target=machine, policy=policy
    )
    instructions = emulation.lower(program)

    def traced(*arrays: jax.Array) -> list[jax.Array]:
        history = None
        if instructions.amax_slots:
            shape = (instructions.amax_history_length, instructions.amax_slots)
            history = jnp.zeros(shape, jnp.float32)
        context = CallContext(jnp.uint32(rounding_seed), history)
        flat = transformations.plain_arrays(arrays)
        results = interpreter.run(instructions, flat, context)
        extra = [] if results.amax_history is None else [results.amax_history]
        return [*transformations.join_complex(results.results, program), *extra]

    return [np.asarray(x) for x in NATIVE_JIT(traced)(*map(jnp.asarray, inputs))]


def x64() -> bool:
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def stored_program(stored: GoldenFile) -> Program:
    """Return the program of a golden, decoded by the installed jaxlib."""
    return read_program(stored.program, [leaf.path for leaf in stored.inputs])


def stored_inputs(stored: GoldenFile) -> list[np.ndarray]:
    """Return the arguments of a golden, drawn again if they came from a seed."""
    arrays = []
    for i, leaf in enumerate(stored.inputs):
        if leaf.seed is None:
            arrays.append(leaf.array(stored.arrays[f"input/{i}"]).reshape(leaf.shape))
        else:
            kind = jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(leaf.dtype))
            arrays.append(drawn(kind, leaf.path, leaf.seed, i))
    return arrays
