"""The cases of the conformance vectors, made anew bit for bit.

Inputs are integers from a fixed stream (`testing.inputs`) and every place where a
format's rounding changes; outputs are what `runners.Neuronjax` returns, which the tests
compare with oracles that share no code with it. A change of what is generated is a new
`conformance.VERSION`; `python -m tests.testing.vector_cases` writes the files anew.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from neuronjax.hardware import resolve_target
from neuronjax.ir.collectives.algorithms import ALL_REDUCE, fold_plan
from neuronjax.ir.collectives.placement import Placement
from neuronjax.numerics.float_format import FORMATS, FloatFormat
from neuronjax.numerics.mx_scales import ALTERNATIVE, SCALE_RULES
from neuronjax.numerics.sparsity_codes import PATTERNS
from neuronjax.numerics.widening import decode
from neuronjax.testing.conformance import PUBLISHED, Case
from neuronjax.testing.inputs import raw_words
from neuronjax.testing.runners import Neuronjax
from tests.testing.vector_files import write

_RUNNER = Neuronjax()
_SPECIAL = (0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F7FFFFF)
_MX_FORMATS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1")


def cases() -> Iterator[Case]:
    """The set, in the order of the manifest."""
    for make in (_casts, _mx, _sparsity, _matmuls, _collectives):
        yield from make()


def _case(
    family: str, name: str, inputs: Mapping[str, np.ndarray], **parameters: Any
) -> Case:
    """A case as the emulator answers it; its name begins with the function's."""
    function = name.partition("/")[0]
    returned = getattr(_RUNNER, function)(**inputs, **parameters)
    named = returned if isinstance(returned, dict) else {"result": returned}
    return Case(
        family=family,
        name=name,
        function=function,
        parameters=parameters,
        inputs=inputs,
        outputs={name: _unsigned(array) for name, array in named.items()},
    )


def _unsigned(array: Any) -> np.ndarray:
    found = np.ascontiguousarray(array)
    return found.view(f"u{found.dtype.itemsize}")


def _words(name: str, count: int, bits: int = 32) -> np.ndarray:
    """Uniform unsigned integers, another stream for every name."""
    stream = int.from_bytes(name.encode()[:8].ljust(8), "little")
    drawn = raw_words(count, len(name), stream) >> np.uint64(64 - bits)
    return drawn.astype(np.uint32)


# -- Casts -----------------------------------------------------------------------------

_ROUNDINGS = (
    ("rne", "ieee"),
    ("rne", "saturate"),
    ("rtz", "ieee"),
    ("half_away", "ieee"),
    ("stochastic", "ieee"),
)


def _casts() -> Iterator[Case]:
    for fmt in FORMATS.values():
        if fmt.name == "float32":
            continue
        x = _around(fmt)
        for rounding, overflow in _ROUNDINGS:
            given = {"x": x}
            if rounding == "stochastic":
                given["random_bits"] = _words(f"random {fmt.name}", x.size)
            how = dict(format=fmt.name, rounding=rounding, overflow=overflow)
            yield _case("casts", "/".join(("cast", *how.values())), given, **how)
        tiny = {"x": _words(f"subnormal {fmt.name}", 32) & np.uint32(0x807FFFFF)}
        name = f"cast/{fmt.name}/rne/ieee/subnormals"
        how = dict(format=fmt.name, rounding="rne", overflow="ieee")
        yield _case("casts", name, tiny, **how, flush_subnormals=True)


#: Formats of whose zeros the published set has the negative one.
_NEGATIVE_ZERO = ("float8_e5m2", "float8_e4m3", "float8_e4m3fn")


def _around(fmt: FloatFormat) -> np.ndarray:
    """float32 patterns where rounding to a format decides, and any others."""
    values = _numbers(fmt)
    middle = (values[:-1].astype(np.float64) + values[1:]) / 2
    exact = np.concatenate([values, middle.astype(np.float32)]).view(np.uint32)
    near = np.concatenate([exact, exact + 1, exact - 1])
    anything = _words(f"cast {fmt.name}", 512)
    found = np.concatenate([np.array(_SPECIAL, np.uint32), near, anything])
    finite = (found & 0x7F800000) != 0x7F800000
    subnormal = ((found & 0x7F800000) == 0) & ((found & 0x7FFFFFFF) != 0)
    known = np.isin(found, np.array(_SPECIAL, np.uint32))
    return found[(finite & ~subnormal) | known]


def _numbers(fmt: FloatFormat) -> np.ndarray:
    """Finite numbers of a format, ascending: all of a narrow one, else some."""
    if fmt.width <= 8:
        codes = np.arange(1 << fmt.width)
    else:
        codes = _words(f"codes {fmt.name}", 256, 16).astype(np.int64)
        codes = np.unique(np.concatenate([codes, codes + 1]))
        codes = codes[codes < 1 << 16]
    if fmt.name == "tfloat32":
        codes = codes << 16
    values = np.asarray(decode(jnp.asarray(codes, fmt.code_dtype), fmt))
    values = np.unique(values[np.isfinite(values)])
    # Of two zeros np.unique keeps one or the other, as the processor sorts.
    values[values == 0] = -0.0 if fmt.name in _NEGATIVE_ZERO else 0.0
    return values


# -- Microscaling ----------------------------------------------------------------------


@functools.cache
def _blocks() -> np.ndarray:
    """float32 patterns [24, 80]: ranges, zeros, subnormals, and NaN and Inf blocks."""
    words = _words("mx", 24 * 80).reshape(24, 80)
    exponents = np.linspace(1, 250, 24).astype(np.uint32)[:, None]
    spread = (words >> 8) % 10
    patterns = (words & 0x807FFFFF) | ((exponents + spread).clip(max=254) << 23)
    patterns[1, :40] &= 0x80000000  # zeros of both signs
    patterns[2, ::3] &= 0x807FFFFF  # subnormals
    patterns[3, 5], patterns[4, 40], patterns[5, 70] = (
        0x7FC00000,
        0x7F800000,
        _SPECIAL[3],
    )
    return patterns


# The vendor's golden runs on a CPU: what it does to subnormals, NaN and Inf is no
# model of the chip.
_ORDINARY = 6


def _mx() -> Iterator[Case]:
    for fmt in _MX_FORMATS:
        for rule in SCALE_RULES:
            if rule.endswith(ALTERNATIVE):
                continue  # a rule of the same kind with another emax
            x = _blocks()[_ORDINARY if rule == "nki_golden" else 0 :]
            name = f"quantize_mx/{fmt}/{rule}"
            yield _case("mx", name, {"x": x}, format=fmt, scale_rule=rule)


# -- Sparsity --------------------------------------------------------------------------


def _sparsity() -> Iterator[Case]:
    x = _words("sparsity", 48 * 16, 16).reshape(48, 16).astype(np.uint16)
    x[:, :4] &= 0xBF80  # few magnitudes: ties
    x[7, 5], x[9, 5], x[11, 6] = 0x7FC0, 0xFF80, 0x8000
    for pattern in PATTERNS:
        yield _case("sparsity", f"sparsify/{pattern}", {"x": x}, pattern=pattern)


# -- Matmuls ---------------------------------------------------------------------------

#: Model, format, K: a part of a tile, and some tiles with a part.
_DENSE = (
    ("systolic", "bfloat16", 100),
    ("systolic", "bfloat16", 300),
    ("systolic", "float16", 300),
    ("systolic", "float8_e4m3", 200),
    ("systolic", "float8_e5m2", 130),
    ("fp32_4pass_rows32", "float32", 40),
    ("fp32_4pass_rows32", "float32", 300),
    ("fp32_4pass", "float32", 40),
    ("fp32_4pass", "float32", 300),
    ("double_row", "float8_e4m3", 256),
    ("double_row", "float8_e4m3", 600),
    ("double_row", "float8_e5m2", 300),
)
_ROWS, _COLUMNS = 6, 10


def _matmuls() -> Iterator[Case]:
    for model, fmt, k in _DENSE:
        name = f"matmul/{model}/{fmt}/{k}"
        sides = {
            side: _operand(f"{side} {k} {fmt} {model}", fmt, shape)
            for side, shape in (("lhs", (_ROWS, k)), ("rhs", (k, _COLUMNS)))
        }
        yield _case("matmul", name, sides, format=fmt, model=model)
    yield from _block_matmuls()
    yield from _sparse_matmuls()


def _operand(name: str, fmt: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of some octaves and both signs, in which the order of a sum shows."""
    words = _words(name, int(np.prod(shape))).reshape(shape)
    octaves = 4 if fmt.startswith("float8") else 9
    exponents = 127 - octaves // 2 + (words >> 24) % octaves
    values = (words & 0x807FFFFF) | (exponents << 23)
    return _unsigned(values.view(np.float32).astype(jnp.dtype(fmt)))


def _block_matmuls() -> Iterator[Case]:
    for fmt, k in (("float8_e4m3fn", 96), ("float8_e4m3fn", 800), ("float8_e5m2", 544)):
        inputs = {}
        for side, rows in (("lhs", _ROWS), ("rhs", _COLUMNS)):
            name = f"{side} {k} {fmt} mx"
            inputs[side] = _operand(name, fmt, (rows, k))
            scales = 120 + _words(f"{name} s", rows * k // 32, 4)
            inputs[f"{side}_scales"] = scales.reshape(rows, k // 32).astype(np.uint8)
        yield _case("matmul", f"matmul_mx/{fmt}/{k}", inputs, format=fmt)


def _sparse_matmuls() -> Iterator[Case]:
    for pattern, k in (("4:16", 640), ("2:4", 288)):
        inputs = {
            "x": _operand(f"x {k} {pattern}", "bfloat16", (_ROWS, k)),
            "w": _operand(f"w {k} {pattern}", "bfloat16", (k, _COLUMNS)),
        }
        yield _case("matmul", f"matmul_sparse/{pattern}/{k}", inputs, pattern=pattern)


# -- Collectives -----------------------------------------------------------------------

_ALGORITHMS = ("ring", "kangaring", "rdh", "mesh", "single_step_mesh", "left_fold")


def _collectives() -> Iterator[Case]:
    placement = Placement.of(resolve_target("trn2.48xlarge"))
    for ranks, formats in ((64, ("bfloat16",)), (16, ("bfloat16", "float32"))):
        group = placement.group(range(ranks))
        for algorithm in _ALGORITHMS:
            plan = fold_plan(algorithm, ALL_REDUCE, group)
            for fmt in formats:
                inputs = {
                    "x": _operand(f"x {ranks} {fmt}", fmt, (ranks, 130)),
                    "order": np.array(plan.order, np.uint8),
                }
                yield _case(
                    "collectives",
                    f"reduce/{algorithm}/{ranks}/{fmt}",
                    inputs,
                    format=fmt,
                    stages=[[stage.width, stage.hop] for stage in plan.stages],
                    algorithm=algorithm,
                )


assert ml_dtypes  # registers the dtypes' names

if __name__ == "__main__":
    write(PUBLISHED, cases())
