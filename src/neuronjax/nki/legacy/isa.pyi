# Made from the rows of ir.nki_instructions: python -m tests.nki.stubs
# fmt: off
# ruff: noqa
"""`neuronxcc.nki.isa`: the instructions of `nki.isa` in a form that returns the result."""

from collections.abc import Sequence
from typing import Any, NoReturn

from neuronjax.nki.isa.constants import FP32_MIN
from neuronjax.nki.legacy.tiles import Tile
from neuronjax.nki.isa.constants import dge_mode as dge_mode
from neuronjax.nki.isa.constants import dma_engine as dma_engine
from neuronjax.nki.isa.constants import engine as engine
from neuronjax.nki.isa.constants import gpsimd_engine as gpsimd_engine
from neuronjax.nki.isa.constants import nc_version as nc_version
from neuronjax.nki.isa.constants import oob_mode as oob_mode
from neuronjax.nki.isa.constants import reduce_cmd as reduce_cmd
from neuronjax.nki.isa.constants import scalar_engine as scalar_engine
from neuronjax.nki.isa.constants import tensor_engine as tensor_engine
from neuronjax.nki.isa.constants import unknown_engine as unknown_engine
from neuronjax.nki.isa.constants import vector_engine as vector_engine

def activation(op: Any, data: Tile, *, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None, reduce_res: Tile | None = None, reduce_cmd: Any = reduce_cmd.idle, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """op(data * scale + bias)."""

def activation_reduce(op: Any, data: Tile, *, reduce_op: Any, reduce_res: Tile, bias: Any = None, scale: Any = 1.0, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """op(data * scale + bias), and its sums in reduce_res."""

def affine_select(pred: Any, on_true_tile: Tile, on_false_value: float, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """Return on_true_tile where `pred` is true, else the number."""

def bn_aggr(data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """Mean and variance, from several statistics."""

def bn_stats(data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """Means and variances of every partition, six numbers."""

def builtin_custom_op(*args: Any, **options: Any) -> NoReturn:
    """Refuse custom machine code for GpSimdE, which cannot be executed here."""

def dma_copy(*, dst: Tile, src: Tile, mask: Any = None, dst_rmw_op: Any = None, oob_mode: Any = oob_mode.error, dge_mode: Any = dge_mode.unknown) -> None:
    """Copy src to dst, or add src to dst with dst_rmw_op=np.add."""

def dma_transpose(src: Tile, *, axes: Sequence[int] | None = None, mask: Any = None, dtype: Any = None, dge_mode: Any = dge_mode.unknown, **hints: Any) -> Tile:
    """Return the transpose, made by DMA."""

def dropout(data: Tile, prob: Any, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """data with elements replaced by zeros."""

def iota(expr: Any, dtype: Any, *, mask: Any = None, **hints: Any) -> Tile:
    """Return the values of an affine expression of index arrays."""

def local_gather(src_buffer: Tile, index: Tile, num_elem_per_idx: int = 1, num_valid_indices: int | None = None, *, mask: Any = None) -> Tile:
    """Return elements by index, for each group of 16 partitions."""

def max8(*, src: Tile, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """The eight largest values of every partition."""

def memset(shape: Sequence[int], value: float, dtype: Any, *, mask: Any = None, engine: Any = engine.unknown, **hints: Any) -> Tile:
    """Return a tile filled with a number."""

def nc_find_index8(*, data: Tile, vals: Tile, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """The first index of each of 8 values."""

def nc_match_replace8(*, data: Tile, vals: Tile, imm: float, dst_idx: Tile | None = None, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """data with eight values replaced."""

def nc_matmul(stationary: Tile, moving: Tile, *, is_stationary_onezero: bool = False, is_moving_onezero: bool = False, is_transpose: bool = False, tile_position: Sequence[int] = (), tile_size: Sequence[int] = (), mask: Any = None, perf_mode: Any = None, **hints: Any) -> Tile:
    """Return stationary.T @ moving in PSUM; `psum += ...` adds it there."""

def nc_stream_shuffle(src: Tile, dst: Tile, shuffle_mask: Sequence[int], **hints: Any) -> None:
    """Copy src to dst with its partitions reordered within each group of 32."""

def nc_transpose(data: Tile, *, mask: Any = None, dtype: Any = None, engine: Any = engine.unknown, **hints: Any) -> Tile:
    """Return the transpose, by TensorE in PSUM or by VectorE in SBUF."""

def range_select(*, on_true_tile: Tile, comp_op0: Any, comp_op1: Any, bound0: Tile, bound1: Tile, reduce_cmd: Any = reduce_cmd.idle, reduce_res: Tile | None = None, reduce_op: Any = 'maximum', range_start: int = 0, on_false_value: float = FP32_MIN, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """on_true_tile where the index is within the bounds, else on_false_value."""

def reciprocal(data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """1 / data."""

def scalar_tensor_tensor(*, data: Tile, op0: Any, operand0: Any, op1: Any, operand1: Tile, reverse0: bool = False, reverse1: bool = False, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """(data <op0> operand0) <op1> operand1, a tile."""

def select_reduce(*, dst: Tile, predicate: Tile, on_true: Tile, on_false: Any, reduce_res: Tile | None = None, reduce_cmd: Any = reduce_cmd.idle, reduce_op: Any = 'maximum', reverse_pred: bool = False, mask: Any = None, dtype: Any = None, **hints: Any) -> None:
    """dst = on_true where the predicate holds, else on_false."""

def sequence_bounds(*, segment_ids: Tile, dtype: Any = None) -> Tile:
    """Return the first and last index of every element's segment."""

def tensor_copy(src: Tile, *, engine: Any = engine.unknown, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """A copy."""

def tensor_copy_dynamic_dst(*, dst: Tile, src: Tile, engine: Any = engine.unknown, mask: Any = None, dtype: Any = None, **hints: Any) -> None:
    """dst = src, where dst is indexed by an offset in SBUF."""

def tensor_copy_dynamic_src(src: Tile, *, engine: Any = engine.unknown, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """A copy of src, which is indexed by an offset in SBUF."""

def tensor_copy_predicated(*, dst: Tile, src: Any, predicate: Tile, reverse_pred: bool = False, mask: Any = None, dtype: Any = None, **hints: Any) -> None:
    """dst = src where the predicate holds."""

def tensor_partition_reduce(op: Any, data: Tile, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """Return the reduction over the partitions."""

def tensor_reduce(op: Any, data: Tile, axis: int | Sequence[int], *, mask: Any = None, dtype: Any = None, negate: bool = False, keepdims: bool = False, **hints: Any) -> Tile:
    """Return the reduction over the last free axes."""

def tensor_scalar(data: Tile, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None, operand1: Any = None, reverse1: bool = False, *, engine: Any = engine.unknown, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """(data <op0> operand0) <op1> operand1."""

def tensor_scalar_cumulative(*, dst: Tile, src: Tile, op0: Any, op1: Any, imm0: Any, imm1: Any = None, reduce_cmd: Any = reduce_cmd.reset_reduce, mask: Any = None, dtype: Any = None, **hints: Any) -> None:
    """dst takes every value of a register: register = (src <op0> imm0) <op1> register."""

def tensor_scalar_reduce(*, data: Tile, op0: Any, operand0: Any, reduce_op: Any, reduce_res: Tile, reverse0: bool = False, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """data <op0> operand0, and its reduction in reduce_res."""

def tensor_tensor(data1: Tile, data2: Tile, op: Any, *, engine: Any = engine.unknown, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """data1 <op> data2; free dimensions of 1 repeat."""

def tensor_tensor_scan(data0: Tile, data1: Tile, initial: Any, op0: Any, op1: Any, reverse0: bool = False, reverse1: bool = False, *, mask: Any = None, dtype: Any = None, **hints: Any) -> Tile:
    """result[i] = (data0[i] <op0> result[i-1]) <op1> data1[i]."""
