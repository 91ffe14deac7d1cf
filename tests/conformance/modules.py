"""StableHLO text: emulated, and evaluated by the reference interpreter of jaxlib.

For forms that a saved program may hold and that JAX does not emit, or not on demand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from neuronjax.capture.attributes import decode_attribute
from neuronjax.capture.decode import decode_module
from neuronjax.execution import interpreter
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.lowering import lower
from neuronjax.policy import Policy
from tests.conformance import bits


@dataclasses.dataclass(frozen=True)
class Form:
    """One form of an op, a function of its own in a module of many.

    Attributes:
        name: of the function.
        arrays: its arguments, %0, %1, ...
        results: types in MLIR.
        body: its ops.
        returned: the names of what it returns.
    """

    name: str
    arrays: tuple[np.ndarray, ...]
    results: tuple[str, ...]
    body: str
    returned: tuple[str, ...]

    def function(self) -> str:
        arguments = ", ".join(f"%{i}: {tensor(a)}" for i, a in enumerate(self.arrays))
        results = ", ".join(self.results)
        names = ", ".join(self.returned)
        return (
            f"func.func private @{self.name}({arguments}) -> ({results}) {{\n"
            f"{self.body}\nfunc.return {names} : {results}\n}}"
        )


def form(name: str, arrays: Sequence[Any], results: Sequence[Any], body: str) -> Form:
    """A form whose op defines %r, or %r#0, %r#1, ...; results like the given arrays."""
    given = tuple(np.asarray(a) for a in arrays)
    types = tuple(r if isinstance(r, str) else tensor(r) for r in results)
    count = len(types)
    returned = tuple(f"%r#{i}" for i in range(count)) if count > 1 else ("%r",)
    return Form(name, given, types, body, returned)


def module(forms: Sequence[Form]) -> tuple[str, list[np.ndarray]]:
    """The text of one module that returns what all forms return, and its arguments."""
    arguments, calls, returned, types = [], [], [], []
    for f in forms:
        names = [f"%a{len(arguments) + i}" for i in range(len(f.arrays))]
        arguments += f.arrays
        calls.append(
            f"%{f.name}:{len(f.results)} = func.call @{f.name}({', '.join(names)})"
            f" : ({', '.join(map(tensor, f.arrays))}) -> ({', '.join(f.results)})"
        )
        returned += [f"%{f.name}#{i}" for i in range(len(f.results))]
        types += f.results
    parameters = ", ".join(f"%a{i}: {tensor(a)}" for i, a in enumerate(arguments))
    main = (
        f"func.func public @main({parameters}) -> ({', '.join(types)}) {{\n"
        + "\n".join(calls)
        + f"\nfunc.return {', '.join(returned)} : {', '.join(types)}\n}}"
    )
    return "\n".join([main, *[f.function() for f in forms]]), arguments


def labels(forms: Sequence[Form]) -> list[str]:
    """A name for each result of a module."""
    return [f"{f.name} {i}" for f in forms for i in range(len(f.results))]


def lowered(text: str, target: str = "trn2", **policy: Any) -> InstructionProgram:
    """The instructions of a module."""
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        program = decode_module(ir.Module.parse(text))
    return lower(program, target=resolve_target(target), policy=Policy(**policy))


def run(text: str, *arrays: Any, **options: Any) -> list[np.ndarray]:
    """What an emulated module returns."""
    program = lowered(text, **options)
    with jax.enable_x64(_any_of_64_bits(arrays)):
        return [np.asarray(x) for x in _compiled(program, arrays)]


def run_both_ways(text: str, *arrays: Any, **options: Any) -> list[np.ndarray]:
    """As `run`; asserts that op by op the bits are the same."""
    program = lowered(text, **options)
    with jax.enable_x64(_any_of_64_bits(arrays)):
        compiled = _compiled(program, arrays)
        with jax.disable_jit():
            alone = interpreter.run(
                program, [jax.numpy.asarray(a) for a in arrays]
            ).results
    bits.assert_same(compiled, list(alone), "op by op")
    return [np.asarray(x) for x in compiled]


def _any_of_64_bits(arrays: Sequence[Any]) -> bool:
    """Of arguments; a program may hold what JAX without the flag would not make."""
    return any(np.asarray(a).dtype.itemsize == 8 for a in arrays)


def _compiled(program: InstructionProgram, arrays: Any) -> list[jax.Array]:
    inputs = [jax.numpy.asarray(a) for a in arrays]
    return list(jax.jit(lambda *x: interpreter.run(program, x).results)(*inputs))


_TYPES = {
    "bool": "i1",
    "bfloat16": "bf16",
    "float8_e5m2": "f8E5M2",
    "float8_e4m3": "f8E4M3",
}


def element_type(dtype: Any) -> str:
    """The name of a dtype in MLIR."""
    dtype = np.dtype(dtype)
    short = {"i": "i", "u": "ui", "f": "f"}.get(dtype.kind, "")
    return _TYPES.get(dtype.name) or f"{short}{dtype.itemsize * 8}"


def tensor(array: Any) -> str:
    """The MLIR type of an array."""
    dimensions = "".join(f"{n}x" for n in array.shape)
    return f"tensor<{dimensions}{element_type(array.dtype)}>"


def reference(text: str, *arrays: np.ndarray) -> list[np.ndarray]:
    """What the reference interpreter returns."""
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        attributes = [_attribute(a) for a in arrays]
        results = stablehlo.eval_module(ir.Module.parse(text), attributes)
        return [_array(r) for r in results]


def _attribute(array: np.ndarray) -> Any:
    text = _literal(array) if array.size else ""
    return ir.Attribute.parse(f"dense<{text}> : {tensor(array)}")


def _literal(array: np.ndarray) -> str:
    if array.ndim:
        return "[" + ", ".join(map(_literal, array)) + "]"
    if array.dtype.kind in "iu":
        return str(array)
    if array.dtype == np.bool_:
        return str(bool(array)).lower()
    unsigned = array.view(f"u{array.dtype.itemsize}")
    return f"0x{int(unsigned):0{2 * array.dtype.itemsize}X}"


def _array(attribute: Any) -> np.ndarray:
    return decode_attribute("", attribute, "")


# ---- Arrays.

DTYPES = [
    *(
        np.dtype(f"{kind}{width}")
        for kind in ("int", "uint")
        for width in (8, 16, 32, 64)
    ),
    np.dtype(np.bool_),
    np.dtype(np.float32),
    np.dtype(np.float16),
    *map(np.dtype, (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3)),
]


def ints(rng: np.random.Generator, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def some(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    if dtype.kind in "iu":
        return ints(rng, *shape, dtype=dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


# ---- Regions.


def constant(name: str, value: Any, dtype: str = "i32") -> str:
    return f"{name} = stablehlo.constant dense<{value}> : tensor<{dtype}>\n"


def op(result: str, name: str, *operands: str, dtype: str = "i32") -> str:
    return f"{result} = stablehlo.{name} {', '.join(operands)} : tensor<{dtype}>\n"


def block(arguments: str, body: str, returned: str, dtype: str = "i32") -> str:
    """A region; `arguments` and `returned` are names."""
    names = ", ".join(f"{a}: tensor<{dtype}>" for a in arguments.split())
    types = ", ".join(f"tensor<{dtype}>" for _ in returned.split())
    values = ", ".join(returned.split())
    return f"({{\n^bb0({names}):\n{body}stablehlo.return {values} : {types}\n}})"


ADD = block("%x %y", op("%s", "add", "%x", "%y"), "%s")
#: Adds in another dtype: a body that is more than one op.
LONG = block(
    "%x %y",
    "%a = stablehlo.convert %x : (tensor<i32>) -> tensor<i64>\n"
    "%b = stablehlo.convert %y : (tensor<i32>) -> tensor<i64>\n"
    + op("%c", "add", "%a", "%b", dtype="i64")
    + "%s = stablehlo.convert %c : (tensor<i64>) -> tensor<i32>\n",
    "%s",
)
PAIR = block(
    "%a %b %x %y",
    op("%s", "add", "%a", "%x") + op("%t", "maximum", "%b", "%y"),
    "%s %t",
)
ZERO, LEAST = constant("%z", 0), constant("%least", -(2**31))
