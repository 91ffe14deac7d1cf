"""The oracles as a runner of the conformance vectors: no code shared with neuronjax."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.oracles import contraction, floats, microscaling, sparsity, tensor_engine

NAMES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3": "e4m3",
    "float8_e5m2": "e5m2",
}
BLOCKS = {"float8_e4m3fn": "mxfp8_e4m3", "float8_e5m2": "mxfp8_e5m2"}
MATRICES = (((1,), (0,)), ((), ()))


def numbers(codes: np.ndarray, name: str) -> np.ndarray:
    """Bit patterns as FP32 numbers."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    return codes.view(dtype).astype(np.float32)


def patterns(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


class Oracles:
    """`tests/oracles`, in NumPy and Python integers."""

    def quantize_mx(self, x: np.ndarray, *, format: str, scale_rule: str) -> Any:
        values = x.view(np.float32)
        codes, scales = microscaling.quantize(values, format, rule=scale_rule)
        return {"elements": codes, "scales": scales}

    def sparsify(self, x: np.ndarray, *, pattern: str) -> Any:
        n, m = map(int, pattern.split(":"))
        source = x.view(ml_dtypes.bfloat16)
        values, tags = sparsity.sparsify(source, n, m, axis=0)
        return {"values": values.view(np.uint16), "tags": tags}

    def matmul(
        self, lhs: np.ndarray, rhs: np.ndarray, *, format: str, model: str
    ) -> Any:
        array = contraction.Array(
            lhs=NAMES[format],
            rhs=NAMES[format],
            double_row=model == "double_row",
            fp32_rows=128 if model == "fp32_4pass" else 32,
        )
        left, right = (numbers(side, format) for side in (lhs, rhs))
        return patterns(contraction.dot_general(left, right, MATRICES, array))

    def matmul_mx(
        self,
        lhs: np.ndarray,
        rhs: np.ndarray,
        lhs_scales: np.ndarray,
        rhs_scales: np.ndarray,
        *,
        format: str,
    ) -> Any:
        blocks = (
            tensor_engine.Blocks(codes=codes, scales=scales, format=BLOCKS[format])
            for codes, scales in ((lhs, lhs_scales), (rhs, rhs_scales))
        )
        left, right = blocks
        return patterns(tensor_engine.matmul_mx(left, right))

    def matmul_sparse(self, x: np.ndarray, w: np.ndarray, *, pattern: str) -> Any:
        n, m = map(int, pattern.split(":"))
        moving, weight = (numbers(side, "bfloat16") for side in (x, w))
        values, tags = sparsity.sparsify(weight.T, n, m)
        return patterns(tensor_engine.matmul_sparse(values, tags, moving, n, m).T)

    def reduce(
        self, x: np.ndarray, order: np.ndarray, *, format: str, stages: Any, **_: Any
    ) -> Any:
        sums = numbers(x, format)
        chunks, size = len(order), x.shape[1]
        length = -(-size // chunks)
        result = np.zeros(size, np.float32)
        for chunk, ranks in enumerate(order):
            part = slice(chunk * length, min((chunk + 1) * length, size))
            result[part] = _folded([sums[r, part] for r in ranks], stages, format)
        dtype = np.dtype(getattr(ml_dtypes, format, None) or format)
        return result.astype(dtype).view(f"u{dtype.itemsize}")


def _folded(sums: list[np.ndarray], stages: Any, name: str) -> np.ndarray:
    for width, hop in stages:
        sums = [
            _line(sums[i : i + width], hop, name) for i in range(0, len(sums), width)
        ]
    [total] = sums
    return total


def _line(sums: list[np.ndarray], hop: int, name: str) -> np.ndarray:
    total = sums[0]
    for added, x in enumerate(sums[1:], 2):
        total = floats.add(total, x)
        if added % hop == 0 and name != "float32":
            total = floats.round_to(total, NAMES[name])
    return total
