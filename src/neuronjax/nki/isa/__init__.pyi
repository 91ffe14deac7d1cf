# Made from the rows of ir.nki_instructions: python -m tests.nki.stubs
# fmt: off
# ruff: noqa
"""`nki.isa`: one function per instruction, made from the rows of `ir.nki_instructions`."""

from collections.abc import Sequence
from typing import Any, NoReturn

from neuronjax.nki.isa.constants import FP32_MIN
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import NkiInstruction as NkiInstruction
from neuronjax.nki.registers import VirtualRegister as VirtualRegister
from neuronjax.nki.isa.constants import dge_mode as dge_mode
from neuronjax.nki.isa.constants import dma_engine as dma_engine
from neuronjax.nki.isa.constants import engine as engine
from neuronjax.nki.isa.constants import gpsimd_engine as gpsimd_engine
from neuronjax.nki.isa.constants import matmul_perf_mode as matmul_perf_mode
from neuronjax.nki.isa.constants import nc_version as nc_version
from neuronjax.nki.isa.constants import oob_mode as oob_mode
from neuronjax.nki.isa.constants import reduce_cmd as reduce_cmd
from neuronjax.nki.isa.constants import scalar_engine as scalar_engine
from neuronjax.nki.isa.constants import tensor_engine as tensor_engine
from neuronjax.nki.isa.constants import unknown_engine as unknown_engine
from neuronjax.nki.isa.constants import vector_engine as vector_engine

def activate2(dst: NkiTensor, op: Any, data: NkiTensor, imm0: Any, imm1: Any, op0: Any, op1: Any, relu_param: Any = 0.0, reverse0: bool = False, reverse1: bool = False, reduce_op: Any = None, reduce_res: NkiTensor | None = None, reduce_cmd: Any = reduce_cmd.idle, name: str | None = None) -> NkiInstruction:
    """dst = op((data <op0> imm0) <op1> imm1); the accumulators can reduce dst."""

def activation(dst: NkiTensor, op: Any, data: NkiTensor, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None, reduce_res: NkiTensor | None = None, reduce_cmd: Any = reduce_cmd.idle, name: str | None = None) -> NkiInstruction:
    """dst = op(data * scale + bias), in FP32; the accumulators can sum dst."""

def activation_reduce(dst: NkiTensor, op: Any, data: NkiTensor, reduce_op: Any, reduce_res: NkiTensor, bias: Any = None, scale: Any = 1.0, name: str | None = None) -> NkiInstruction:
    """dst = op(data * scale + bias); reduce_res is dst's sum per partition."""

def affine_select(dst: NkiTensor, pattern: Sequence[Sequence[int]], channel_multiplier: int, on_true_tile: NkiTensor, on_false_value: float, cmp_op: Any = 'equal', offset: int = 0, name: str | None = None) -> NkiInstruction:
    """dst = on_true_tile where the pattern's value <cmp_op> 0, else on_false_value."""

def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """mean and variance per partition of what several `bn_stats` wrote."""

def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """(count, mean, variance * count) of even, then odd elements of each partition."""

def core_barrier(data: NkiTensor, cores: Any, engine: Any = engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Each core waits here for the other core."""

def dma_compute(dst: NkiTensor, srcs: Sequence[NkiTensor], reduce_op: Any, scales: Sequence[float] | None = None, unique_indices: bool = True, oob_mode: Any = oob_mode.error, name: str | None = None) -> NkiInstruction:
    """dst = the sum of up to 16 tensors, in FP32, on the way through the DMA engines."""

def dma_copy(dst: NkiTensor, src: NkiTensor, priority: int | None = None, oob_mode: Any = oob_mode.error, dge_mode: Any = dge_mode.unknown, engine: Any = engine.unknown, name: str | None = None) -> NkiInstruction:
    """dst = src, by the DMA engines, converted by way of FP32 if the dtypes differ."""

def dma_transpose(dst: NkiTensor, src: NkiTensor, axes: Sequence[int] | None = None, priority: int | None = None, dge_mode: Any = dge_mode.unknown, oob_mode: Any = oob_mode.error, name: str | None = None) -> NkiInstruction:
    """dst = src with its axes permuted: (1, 0), (2, 1, 0) or (3, 1, 2, 0)."""

def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> NkiInstruction:
    """dst = data, where each element becomes 0 with probability prob."""

def exponential(dst: NkiTensor, src: NkiTensor, max_value: Any = 0.0, reduce_res: NkiTensor | None = None, reduce_cmd: Any = reduce_cmd.idle, reduce_init: Any = 0.0, name: str | None = None) -> NkiInstruction:
    """dst = exp(src - max_value) on VectorE, whose accumulators can sum dst."""

def get_nc_sub_version() -> int:
    """Return 0, the first revision of the silicon."""

def get_nc_version() -> nc_version:
    """Return the generation of the target's cores; the newest for a projected chip."""

def iota(dst: NkiTensor, pattern: Sequence[Sequence[int]], offset: int = 0, channel_multiplier: int = 0, name: str | None = None) -> NkiInstruction:
    """dst = offset + partition * channel_multiplier + sum of index * step, in 32-bit ints."""

def local_gather(dst: NkiTensor, src_buffer: NkiTensor, index: NkiTensor, num_elem_per_idx: int = 1, num_valid_indices: int | None = None, name: str | None = None) -> NkiInstruction:
    """Gathers within every partition, by indices that 16 partitions share."""

def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """The 8 largest values of every partition, in descending order."""

def memset(dst: NkiTensor, value: float, engine: Any = engine.unknown, name: str | None = None) -> NkiInstruction:
    """Fills a tile with a number."""

def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Indices in data of 8 values per partition; all bits 1 if data lacks a value."""

def nc_match_replace8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: float, dst_idx: NkiTensor | None = None, name: str | None = None) -> NkiInstruction:
    """dst = data with the first match of each of 8 values replaced by imm."""

def nc_matmul(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, is_stationary_onezero: bool = False, is_moving_onezero: bool = False, is_transpose: bool = False, accumulate: bool | None = None, tile_position: tuple[int, ...] = (), tile_size: tuple[int, ...] = (), perf_mode: Any = matmul_perf_mode.none, name: str | None = None) -> NkiInstruction:
    """dst = stationary.T @ moving, or dst += ...; the sum is over the partitions."""

def nc_matmul_mx(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, stationary_scale: NkiTensor, moving_scale: NkiTensor, tile_position: tuple[int, ...] | None = None, tile_size: tuple[int, ...] | None = None, accumulate: bool | None = None, name: str | None = None) -> NkiInstruction:
    """dst = stationary.T @ moving, or dst += ..., with dequantized operands."""

def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Gathers within every partition, by the indices in that partition."""

def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None) -> NkiInstruction:
    """Within each quadrant of 32 partitions, dst[p] = src[shuffle_mask[p]]."""

def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Any = engine.unknown, name: str | None = None) -> NkiInstruction:
    """dst = data.T, where free dimensions count as one."""

def nonzero_with_count(dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None) -> NkiInstruction:
    """Indices and number of nonzero elements, in partitions 0, 16, 32, ..."""

def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Quantizes groups of 32 elements to MXFP8: elements and one scale per group."""

def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> NkiInstruction:
    """dst = uniform numbers between min and max."""

def rand_get_state(dst: NkiTensor, engine: Any = engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """dst = the state of an engine's generators, one row per lane."""

def rand_set_state(src_seeds: NkiTensor, engine: Any = engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Sets the state of an engine's generators, one row per lane."""

def range_select(dst: NkiTensor, on_true_tile: NkiTensor, comp_op0: Any, comp_op1: Any, bound0: NkiTensor, bound1: NkiTensor, reduce_cmd: Any = reduce_cmd.reset_reduce, reduce_res: NkiTensor | None = None, reduce_op: Any = 'maximum', range_start: int = 0, on_false_value: float = FP32_MIN, name: str | None = None) -> NkiInstruction:
    """dst = on_true_tile where index <comp_op0> bound0 and index <comp_op1> bound1."""

def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = 1 / data on VectorE, in FP32."""

def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register, which holds x if x is not None."""

def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """dst = the one element of src."""

def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """dst = src, an int or a register."""

def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """Writes src to the one element of dst."""

def rng(dst: NkiTensor, engine: Any = engine.vector, name: str | None = None) -> NkiInstruction:
    """dst = random bits. From NeuronCore-v3 on, GpSimd can draw too, into SBUF."""

def scalar_tensor_tensor(dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, op1: Any, operand1: NkiTensor, reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1; operand1 is a whole tile."""

def select_reduce(dst: NkiTensor, predicate: NkiTensor, on_true: NkiTensor, on_false: Any, reduce_res: NkiTensor | None = None, reduce_cmd: Any = reduce_cmd.idle, reduce_op: Any = 'maximum', reverse_pred: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = on_true where the predicate is not 0, else on_false. The accumulators can take the maximum of dst."""

def sendrecv(src: NkiTensor, dst: NkiTensor, send_to_rank: int, recv_from_rank: int, pipe_id: int, dma_engine: Any = dma_engine.dma, name: str | None = None) -> NkiInstruction:
    """Sends a tile to a core, and receives a tile of the same shape."""

def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> NkiInstruction:
    """The start and the end of the segment of every element."""

def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seeds VectorE's generators."""

def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Any = engine.unknown, name: str | None = None, dtype: Any = None) -> NkiInstruction:
    """dst = src on chip, converted by way of FP32 if the dtypes differ."""

def tensor_copy_predicated(dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = src where the predicate is not 0; elsewhere dst is unchanged."""

def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Reduces a tile over its partitions on GpSimdE."""

def tensor_reduce(dst: NkiTensor, op: Any, data: NkiTensor, axis: int | Sequence[int], negate: bool = False, keepdims: bool = False, name: str | None = None) -> NkiInstruction:
    """Reduces the last free axes of a tile on VectorE, in FP32 or on bit patterns."""

def tensor_scalar(dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None, operand1: Any = None, reverse1: bool = False, engine: Any = engine.unknown, name: str | None = None) -> NkiInstruction:
    """dst = (data <op0> operand0) <op1> operand1, with one operand per partition."""

def tensor_scalar_cumulative(dst: NkiTensor, src: NkiTensor, op0: Any, op1: Any, imm0: Any, imm1: Any = None, reduce_cmd: Any = reduce_cmd.reset_reduce, name: str | None = None) -> NkiInstruction:
    """register = op1(op0(src, imm0), register); dst = every value of the register."""

def tensor_scalar_reduce(dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, reduce_op: Any, reduce_res: NkiTensor | None = None, reverse0: bool = False, reduce_cmd: Any = reduce_cmd.reset_reduce, reduce_init: Any = None, reduce_res_negate: bool = False, name: str | None = None) -> NkiInstruction:
    """dst = data <op0> operand0; VectorE's accumulators reduce dst."""

def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Any = engine.unknown, name: str | None = None) -> NkiInstruction:
    """dst = data1 <op> data2, in FP32; GpSimd is exact for 32-bit integers."""

def tensor_tensor_scan(dst: NkiTensor, data0: NkiTensor, data1: NkiTensor, initial: Any, op0: Any, op1: Any, reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> NkiInstruction:
    """dst[i] = op1(op0(data0[i], dst[i - 1]), data1[i]) along the free axis."""

def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> NkiInstruction:
    """The k largest elements of every 16 partitions, ascending, and their indices."""
