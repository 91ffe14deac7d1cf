"""Runners of conformance vectors: neuronjax itself, and ml_dtypes for casts.

Each is an example of the protocol: its methods are named like functions of the
manifest, and take and return arrays of bit patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  registers the dtypes' names
import numpy as np

from neuronjax.api.jit import jit
from neuronjax.execution.exchange_fold import SumStorage, fold_ranks
from neuronjax.ir.fold_plan import FoldPlan, Stage
from neuronjax.numerics.exact import opaque, opaque_zero
from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.microscaling import quantize_mx, to_codes
from neuronjax.numerics.rounding import encode, round_to_format
from neuronjax.numerics.sparsity import sparsify
from neuronjax.policy import Policy
from neuronjax.policy.values import LEGAL


def _as(array: np.ndarray, dtype: str) -> jax.Array:
    return jnp.asarray(np.ascontiguousarray(array).view(jnp.dtype(dtype)))


def _bits(array: Any) -> np.ndarray:
    codes = np.asarray(array)
    return codes.view(f"u{codes.dtype.itemsize}")


class Neuronjax:
    """A runner of the emulator."""

    def cast(
        self,
        x: np.ndarray,
        *,
        format: str,
        rounding: str,
        overflow: str,
        random_bits: np.ndarray | None = None,
        flush_subnormals: bool = False,
    ) -> np.ndarray:
        """Return FP32 cast to a format, as codes."""
        fmt = get_format(format)
        options: Any = {"rounding": rounding, "overflow": overflow}
        if random_bits is not None:
            options["random_bits"] = jnp.asarray(random_bits)
        rounded = round_to_format(_as(x, "float32"), fmt, **options)
        return _bits(rounded) if fmt.width > 16 else np.asarray(encode(rounded, fmt))

    def quantize_mx(
        self, x: np.ndarray, *, format: str, scale_rule: Any
    ) -> dict[str, np.ndarray]:
        """Return quantized FP32, as element codes and scale bytes."""
        made = quantize_mx(_as(x, "float32"), format, scale_rule=scale_rule)
        return {
            "elements": np.asarray(to_codes(made.elements)),
            "scales": _bits(made.scales),
        }

    def sparsify(self, x: np.ndarray, *, pattern: str) -> dict[str, np.ndarray]:
        """Return the values of BF16 that sparsification keeps, and their positions."""
        made = sparsify(_as(x, "bfloat16"), pattern, axis=0)
        return {"values": _bits(made.values), "tags": np.asarray(made.tags)}

    def matmul(
        self, lhs: np.ndarray, rhs: np.ndarray, *, format: str, model: str
    ) -> np.ndarray:
        """Return the product of dense operands."""
        # Other models than those for FP32 follow from the operands' dtype.
        changes: dict[str, Any] = (
            {"fp32_model": model} if model in LEGAL["fp32_model"] else {}
        )
        step = jit(_dot, target="trn2", policy=Policy(auto_cast="none", **changes))
        return _bits(step(_as(lhs, format), _as(rhs, format)))

    def matmul_mx(
        self,
        lhs: np.ndarray,
        rhs: np.ndarray,
        lhs_scales: np.ndarray,
        rhs_scales: np.ndarray,
        *,
        format: str,
    ) -> np.ndarray:
        """Return the product of microscaled operands."""
        step = jit(_scaled_dot, target="trn3")
        elements = (_as(a, format)[None] for a in (lhs, rhs))
        scales = (_as(a, "float8_e8m0fnu")[None] for a in (lhs_scales, rhs_scales))
        return _bits(step(*elements, *scales)[0])

    def matmul_sparse(
        self, x: np.ndarray, w: np.ndarray, *, pattern: str
    ) -> np.ndarray:
        """Return x @ w, where `w` is made sparse."""
        policy = Policy(auto_cast="matmult", auto_cast_type="bf16", sparsity=pattern)
        step = jit(_layer, target="trn2", policy=policy)
        wide = [_as(a, "bfloat16").astype(jnp.float32) for a in (w, x)]
        return _bits(step({"w": wide[0]}, wide[1]))

    def reduce(
        self,
        x: np.ndarray,
        order: np.ndarray,
        *,
        format: str,
        stages: Sequence[Sequence[int]],
        algorithm: str,
    ) -> np.ndarray:
        """Return the sum over ranks in the given order."""
        hops = tuple(Stage(width, hop) for width, hop in stages)
        rows = tuple(tuple(int(rank) for rank in row) for row in order)
        plan = FoldPlan(algorithm, hops, rows)
        ranks, size = x.shape
        length = -(-size // plan.chunks)
        padded = np.pad(x, ((0, 0), (0, length * plan.chunks - size)))
        parts = _as(padded, format).reshape(1, ranks, plan.chunks, length)
        total = _folded(parts, plan, SumStorage(get_format(format)))
        return _bits(total).reshape(-1)[:size]


class MlDtypes:
    """A runner of ml_dtypes, the library of JAX's narrow dtypes: casts to nearest."""

    def cast(
        self,
        x: np.ndarray,
        *,
        format: str,
        rounding: str,
        overflow: str,
        flush_subnormals: bool = False,
        **others: Any,
    ) -> np.ndarray:
        """Return FP32 cast by NumPy's `astype`, as codes."""
        is_plain = (rounding, overflow) == ("rne", "ieee") and not flush_subnormals
        if not is_plain or format == "tfloat32":
            raise NotImplementedError
        with np.errstate(over="ignore", invalid="ignore"):
            return _bits(x.view(np.float32).astype(jnp.dtype(format)))


def _dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return jnp.matmul(lhs, rhs, preferred_element_type=jnp.float32)


def _scaled_dot(*operands: jax.Array) -> jax.Array:
    return jax.nn.scaled_matmul(*operands, preferred_element_type=jnp.float32)


def _layer(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ parameters["w"]


def _folded(parts: jax.Array, plan: FoldPlan, storage: SumStorage) -> jax.Array:
    def body(parts: jax.Array) -> jax.Array:
        zero = opaque_zero()
        parts = opaque(parts, zero)
        return fold_ranks(parts, plan, "add", storage, zero, jnp.uint32(0))

    return jax.jit(body)(parts)
