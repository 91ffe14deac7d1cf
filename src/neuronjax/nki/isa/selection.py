"""Selections, by a predicate, a range of indices, or an affine expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronjax.nki.isa.constants import FP32_MIN, reduce_cmd as ReduceCmd
from neuronjax.nki.isa.copying import affine_counts
from neuronjax.nki.isa.operands import refuse
from neuronjax.nki.isa.request import Request
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction

_LEAST = np.float32(FP32_MIN)


def tensor_copy_predicated(
    dst: NkiTensor,
    src: Any,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src where the predicate is not 0; elsewhere dst stays."""
    return Request("tensor_copy_predicated", locals()).emit()


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_op: Any = "maximum",
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true where the predicate is not 0, else on_false; their maximum."""
    return Request("select_reduce", locals()).emit()


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = "maximum",
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true_tile where index <op0> bound0 and index <op1> bound1.

    Elsewhere dst is FP32_MIN.
    """
    request = Request("range_select", locals())
    if on_false_value is not ... and np.float32(on_false_value) != _LEAST:
        refuse("range_select", f"on_false_value {on_false_value}", f"only {FP32_MIN}")
    return request.emit()


def affine_select(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = "equal",
    offset: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true_tile where the affine value <cmp_op> 0, else on_false_value."""
    request = Request("affine_select", locals())
    return request.emit(counts=affine_counts(request))
