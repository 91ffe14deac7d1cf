"""Figures of the time model that are not in `neuronjax.hardware`.

Each figure is a `Constant`, so that it can be listed and replaced; rules read
`Constant.value`. A figure that is not published is an assumption; a figure chosen to
match a measurement names the measurement. `CONSTANTS` lists the figures of the cost
rules, `PLANNING_CONSTANTS` those of fusion, memory plan and schedule,
`COLLECTIVE_CONSTANTS` those of collectives. Cycles are those of the engine that the
figure describes. A key in brackets names a source: `hardware/chips.py` and
`hardware/topology.py` explain most keys, this list the other ones:

    V26    cost formulas of nki.isa at tag v2.26.1 (later versions do not print them)
    PG     nki_perf_guide.rst and its pictures
    RMQ    the tutorial of RMSNorm with FP8 quantization and its pictures
    DM DB  the web pages with these keys in `chips.py`, and the pictures in them
    GL     tools/neuron-explorer/glossary.rst
    KDA    kernels of kda-for-trainium on trn2, with the profiler's counters. Most of
           the published times are half of what one core takes, and are doubled here
    AO     kernels of NKIBench, measured on trn1 (github.com/zhang677/AccelOpt)
    VL     regression baselines of the vendor's kernel library on trn2
    DGE    nki/deep-dives/nki-dge.rst
    T2 T12 T16  measurements in `benchmarks/validate_collectives.py`, which prints the
           model's error for each
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronjax.hardware import EFA


@dataclass(frozen=True)
class Constant:
    """A figure of the time model.

    Attributes:
        name: the name of its variable in this module; `_named` sets it.
        value: the figure, in `unit`.
        unit: "s", "cycles", "B", "B/s", "fraction", "elements/cycle" and so on.
        source: where the figure is published, or the reasoning of an assumption.
        is_assumption: whether the figure is not published.
        fitted_to: the measurement that `value` was chosen to match; empty if none.
    """

    name: str = field(init=False, default="")
    value: float
    unit: str
    source: str
    is_assumption: bool = False
    fitted_to: str = ""


def assumed(value: float, unit: str, source: str, fitted_to: str = "") -> Constant:
    """Return a `Constant` whose value is not published."""
    return Constant(value, unit, source, is_assumption=True, fitted_to=fitted_to)


def _named(*listed: Mapping[str, Constant]) -> Mapping[str, Constant]:
    """Return, by name, the constants of this module that none of the mappings `listed`
    has, and set the `name` of each."""
    known = {name for group in listed for name in group}
    found = {n: c for n, c in globals().items() if isinstance(c, Constant)}
    found = {n: c for n, c in found.items() if n not in known}
    for name, constant in found.items():
        object.__setattr__(constant, "name", name)
    return found


# -- around a program ------------------------------------------------------------------

PROGRAM_SECONDS = assumed(
    10e-6,
    "s",
    "time added to every program: the line through measured times, plotted against"
    " bytes moved, does not go through zero. What takes this time (first and last"
    " transfers, fetching instructions, ending) is not published",
    fitted_to="trn2, LNC 1: 12 us would fit MLP decode and its baseline kernels, 20 us"
    " FP8 decode, 30 us prefill of few rows [VL]; trn1: 22 us would fit Mamba. The"
    " model's time is shorter than any of these",
)

# -- TensorE ---------------------------------------------------------------------------

MATMUL_MINIMUM = Constant(
    64,
    "cycles",
    "least time of a matmul, MM_INIT_LATENCY [A2]; if the stationary operand has fewer"
    " than 64 columns, the least time is one cycle for each of them [V26]",
)
FAST_LOAD = Constant(
    4,
    "ratio",
    "LoadStationary, which loads a stationary operand, is up to 4 times as fast as"
    " MultiplyMoving of the same free size [A2]",
)
TILE_ROWS_V2 = Constant(
    64,
    "rows",
    "rows of the smallest tile of TensorE's array before NeuronCore-v3; it has as many"
    " columns [ISA]",
)
TILE_ROWS = Constant(
    32,
    "rows",
    "rows of the smallest tile of TensorE's array from NeuronCore-v3 on; it has as many"
    " columns [ISA]",
)
PARALLEL_INPUT = assumed(
    256,
    "elements/cycle",
    "elements that TensorE's array reads per cycle, 2 x 128 [A2, A3, A4]. Tiles of the"
    " array run in parallel [ISA]; the model lets them have at most this many rows"
    " together, which no document says",
)
ONE_ZERO = Constant(
    2,
    "ratio",
    "speedup of an FP32 matmul for each operand that has only zeros and ones [ISA]",
)
FP32_TRANSPOSE_PASSES = Constant(
    2,
    "passes",
    "from NeuronCore-v3 on, an FP32 transpose takes half of the 4 passes that an FP32"
    " matmul takes [A3]",
)
THROTTLE_SECONDS = Constant(
    3e-6,
    "s",
    "time in which TensorE's rate rises from half to full after a pause [GL]",
)
THROTTLE_LIMIT = Constant(
    0.5,
    "fraction",
    "TensorE's lowest rate, divided by its full rate. The same number is the use of"
    " TensorE's array below which the rate falls [GL]",
)
THROTTLE_SINKING = assumed(
    0.25,
    "s/s",
    "for each second in which the use of TensorE's array is below THROTTLE_LIMIT, the"
    " rise to the full rate is set back by this constant times (THROTTLE_LIMIT - use)"
    " seconds. The use is 0 in a pause; in a matmul it is the fraction of the full rate"
    " times the share of the array's rows that the matmul occupies. No document says"
    " that rows matter",
    fitted_to="trn2, eight kernels of bmm with products of 64 rows [KDA]",
)

# -- VectorE and ScalarE ---------------------------------------------------------------

MINIMUM_INTERVAL = Constant(
    64, "cycles", "least time of an instruction of VectorE or ScalarE: MIN_II [V26]"
)
VISIBLE_STARTS = assumed(
    1,
    "accesses",
    "number of an instruction's accesses to SBUF or PSUM that start after the previous"
    " instruction has ended; its other accesses start earlier [A2]. The start of an"
    " access takes 60 cycles",
    fitted_to="trn2, scalar_tensor_tensor of 512 elements: every 640 ns [RMQ, picture]",
)
STATIC_OVERHEAD = Constant(
    100,
    "cycles",
    "fixed latency of an instruction, which matters if its elements are few or if the"
    " next instruction waits for its result [A2]",
)
REDUCE_IN_PASSING = Constant(
    64,
    "cycles",
    "added for each row that activation_reduce or tensor_scalar_reduce reduces"
    " [V26, A2]",
)
STRIDE_BYTES = Constant(
    16, "B", "smallest innermost stride at which an engine's bandwidth is halved [A2]"
)
STRIDED_ACCESS = Constant(
    2,
    "cycles/element",
    "time if the innermost stride is STRIDE_BYTES or more [A2]; the guides of later"
    " chips state no other time",
)
DYNAMIC_COPY_MINIMUM = Constant(
    600,
    "cycles",
    "least time of a copy whose address is known only at run time [V26]",
)
RECIPROCAL_PASSES = Constant(8, "cycles/element", "reciprocal on VectorE [V26, SH]")
RECIPROCAL_PASSES_V2 = Constant(
    2.6,
    "cycles/element",
    "reciprocal on VectorE of NeuronCore-v2, for which 8 cycles are published",
    fitted_to="trn1, SiLU: VectorE is active for 74 % of the time [AO]",
)
BN_AGGR_PASSES = Constant(
    13 / 3, "cycles/element", "bn_aggr: 13 cycles for 3 elements [V26]"
)
MAX8_EXTRA = Constant(
    144, "cycles", "added to max8 and to nc_match_replace8; from nki-library"
)
ELEMENTS_OF_AN_INSTRUCTION = assumed(
    2048,
    "elements",
    "largest free size of an elementwise instruction; a larger tile is divided, so that"
    " readers of the first part of the result start early. For an operand in PSUM the"
    " limit is the size of a bank",
)
TABLE_LOAD = Constant(
    1.28e-6,
    "s",
    "time to load a function's table into ScalarE: that of exp on trn2 [DM, picture]",
)
RANDOM_XORWOW = Constant(
    4,
    "words/lane/cycle",
    "random words by XORWOW on NeuronCore-v4 [A4]; ASSUMPTION: 1 on older cores",
)
EXPONENTIAL_SPEEDUP = Constant(
    4,
    "ratio",
    "speed of exp on VectorE, divided by the speed of exp on ScalarE [A4]",
)
QUANTIZE_MX_RATE = Constant(4, "elements/lane/cycle", "quantize_mx [A4]")

ROUNDING_PASSES = assumed(
    3, "passes", "floor and ceil: a cast to int32, a cast back, then a correction"
)
BIT_COUNT_PASSES = assumed(
    15, "passes", "popcnt and count_leading_zeros: five rounds of shift, mask and add"
)
SCALE_STEPS = assumed(
    8,
    "instructions",
    "instructions, each on one element, that compute a scale from an amax (the largest"
    " absolute value)",
)

# -- GpSimdE ---------------------------------------------------------------------------

GPSIMD_START = Constant(150, "cycles", "start of a GpSimdE instruction [V26]")
GPSIMD_BYTES = Constant(
    4, "B/lane/cycle", "GpSimdE reads or writes 512 bits for 16 partitions [A2]"
)
GPSIMD_SHARE = assumed(
    0.5,
    "fraction",
    "the part of its peak rates that software on GpSimdE reaches, since its loads,"
    " operations and stores do not overlap. The peak rates of a lane are GPSIMD_BYTES"
    " and one operation per cycle",
)
GPSIMD_PROCESSORS = Constant(8, "processors", "processors of GpSimdE [A2]")
GATHER_INDEX = assumed(
    7,
    "cycles/index",
    "local_gather: 7 + e cycles for an index that selects e elements. The formula of"
    " V26, (28 + 4 e) / e cycles, is not used, since by it an index that selects more"
    " elements would take less time",
)
TOPK_PASSES = Constant(
    4, "cycles/element", "topk: 4 n + k cycles for the k largest of n elements [ISA]"
)
THREEFRY_OPERATIONS = Constant(
    58,
    "operations/word",
    "threefry2x32: for 2 words, 20 rounds of 5 operations and 5 key injections of 3",
)
PHILOX_OPERATIONS = Constant(
    25,
    "operations/word",
    "philox4x32: for 4 words, 10 rounds of 10 operations; a wide product counts as 2",
)
FUNCTION_OPERATIONS = assumed(
    32,
    "operations",
    "a function of two arguments (power, atan2, ...) as software on GpSimdE",
)
INTEGER_DIVISION = assumed(
    32,
    "operations",
    "a 32-bit quotient or remainder as software on GpSimdE: one operation for each bit",
)
SORT_OPERATIONS = assumed(
    4,
    "operations",
    "operations per element in each step of a merge sort: two reads, a comparison, a"
    " write",
)

# -- DMA -------------------------------------------------------------------------------

DMA_ELEMENT = Constant(
    7e-9,
    "s",
    "time to start each contiguous piece of a transfer",
    fitted_to="trn1, 4-byte packet: 7 ns [PG, picture]",
)
DMA_SEMAPHORE = Constant(
    0.3e-6,
    "s",
    "from the end of a transfer to the start of an instruction that waits for it"
    " [DM, picture]",
)
HBM_LATENCY = assumed(
    0.12e-6,
    "s",
    "latency of a read of DRAM through a network on the chip; nothing is published",
    fitted_to="trn2, DMA trigger to first byte of a load: 739 ns [DM, picture]",
)
SOFTWARE_DMA = Constant(
    1e-6, "s", "GpSimdE's time to make the descriptors of a transfer [KLN]"
)
HBM_INTERLEAVE = assumed(
    512,
    "B",
    "consecutive bytes on one channel of HBM; the next bytes are on the next channel."
    " Two rows start on the same channel if their distance is a multiple of this number"
    " times the number of channels",
    fitted_to="trn1, tutorial of matrix products: rows of 1 KiB, 16 KiB apart, move at"
    " 100 GB/s, since they are on two channels; an interleave of 256 B would give"
    " 205 GB/s, one of 1 KiB 51 GB/s. Rows of 4 KiB in bmm, also 16 KiB apart, move at"
    " 235 GB/s [AO]",
)
DMA_TRANSPOSE_SHARE = Constant(
    0.9, "of DMA's rate", "rate of a transpose by DMA from HBM to SBUF [A3]"
)
DMA_TRANSPOSE_ON_CHIP = Constant(
    0.5, "of DMA's rate", "rate of a transpose by DMA within SBUF [A3]"
)

# -- kernels ---------------------------------------------------------------------------

REORDER_WINDOW = assumed(
    64,
    "instructions",
    "an engine looks at this many of its next instructions and issues the one that can"
    " start first, since the compiler reorders instructions (those of TensorE only in"
    " kernels of neuronxcc.nki). Fused attention takes 21.3 ms on trn2; the prediction"
    " is 31.4 ms in the kernel's order, 21.1 ms with this window [KDA]",
)
REGISTER_CYCLES = assumed(
    16,
    "cycles",
    "time of a sequencer's instruction, such as a move of a register or a barrier;"
    " issue rates are unpublished",
)
PARTITIONS_OF_A_DMA_ENGINE = Constant(
    8, "partitions", "128 partitions / 16 engines [DM]"
)
LOOP_TURNS = assumed(
    16,
    "iterations",
    "iterations of a device loop that are scheduled one by one, if all its iterations"
    " together have more than kernel_unroll.MOST_INSTRUCTIONS instructions; every later"
    " iteration takes as long as the last scheduled one",
)

# -- host ------------------------------------------------------------------------------

HOST_BYTES_PER_SECOND = Constant(16e9, "B/s", "rate of PCIe [pm-memory.png]")
HOST_CALL = assumed(
    50e-6, "s", "a call of a function on the host: interrupt, call, return"
)
HOST_OPERATIONS = assumed(1e10, "operations/s", "rate of one processor of the host")

CONSTANTS = _named()
"""The figures of the cost rules, by name."""

# -- planning --------------------------------------------------------------------------
#
# Each of these figures matters: if it is multiplied or divided by four, the predicted
# time of at least one of some dozen programs changes by a percent or more.

INLINE_LIMIT = assumed(
    200,
    "instructions",
    "a callee with at most this many instructions is inlined, so that its instructions"
    " can be fused with those of its caller",
)
RESIDENT_SHARE = assumed(
    0.85,
    "fraction",
    "the part of SBUF for tensors that later steps read; tiles use the rest",
)
COLUMN_BLOCK_BYTES = assumed(
    4096,
    "B/partition",
    "the part of each row of a matmul's result that is in SBUF at a time, as in online"
    " softmax",
)
ROWS_AT_A_TIME = assumed(
    512,
    "rows",
    "rows that each step of a chain of matmuls processes before the next step starts,"
    " as in nki-library's mlp_cte: the free size of a moving operand",
)
PASSING_SHARE = assumed(
    0.15,
    "fraction",
    "the largest part of SBUF that a chain's weights take at a time, if they do not fit"
    " completely and are loaded again for every block of rows",
)
CARRY_SHARE = assumed(
    0.5,
    "fraction",
    "the part of SBUF for tensors that a loop carries; the smallest tensors are placed"
    " first",
)
MASK_ROWS = assumed(
    128,
    "rows",
    "queries in a block of attention scores, as in nki-library's attention_cte; in a"
    " matmul that contracts the scores, a block has as many keys. Blocks that a mask"
    " hides are not computed",
)
MASK_COLUMNS = assumed(
    512,
    "columns",
    "keys in a block of attention scores, as in nki-library's attention_cte",
)
MOST_PIECES = assumed(
    64,
    "pieces",
    "the schedule divides a region (steps that run tile by tile) into at most this many"
    " equal pieces",
)
CHUNK_BYTES = assumed(
    4096 * 128,
    "B",
    "the part of a load after which a consumer can start: 4 KiB per partition [DB]",
)
LOOP_TURN = Constant(
    1.4e-6,
    "s",
    "added to each iteration of a loop: a loop of 64 iterations takes 257 us, the same"
    " loop unrolled 161 us [KLN, its author]",
)

PLANNING_CONSTANTS = _named(CONSTANTS)
"""The figures of fusion, memory plan and schedule, by name."""

# -- collectives -----------------------------------------------------------------------
#
# What a chip, link or instance can do is in `neuronjax.hardware`; these figures are
# about how collectives use it.

CHIP_START = assumed(
    6e-07,
    "s",
    "from a collective's trigger to its first step, if all ranks are on one chip",
    fitted_to="T12: 2 ranks, 1 KiB: 2.1 us, minus one hop",
)
LINK_START = assumed(
    4.7e-06,
    "s",
    "from a collective's trigger to its first step, if ranks are on several chips;"
    " ASSUMPTION: on several instances too",
    fitted_to="T12: 8 ranks, 1 KiB: 6.3 us, minus one hop",
)
CHIP_HOP = assumed(
    1.5e-06,
    "s",
    "a step of a collective between chips: the middle of the published 1-2 us [IN];"
    " ASSUMPTION: a step on one chip takes as long",
)
EFA_HOP = Constant(
    EFA.hop_seconds, "s", "a step of a collective between instances [CC, IX]"
)
LINK_SHARE = assumed(
    0.7,
    "fraction",
    "the part of a NeuronLink's rate that transfers reach; ASSUMPTION: on all chips",
    fitted_to="T12, 8 ranks: 1 MiB takes longer than 512 KiB by as much as 512 KiB take"
    " at 16.8 GB/s",
)
CHANNEL_SHARE = assumed(
    0.21,
    "fraction",
    "the part of a core's DMA rate that one channel of a collective reaches; a"
    " collective has two channels, or four if a group of ranks fills its node"
    " [nki.collectives]; ASSUMPTION: on all chips",
    fitted_to="T2, 2 ranks: 1 GiB takes longer than 16 MiB by as much as 1008 MiB take"
    " at 56.8 GB/s",
)
SLICE_BYTES = assumed(
    2**20,
    "B",
    "size of the slices of a collective's data. Each slice runs the steps of algorithm"
    " rdh independently of other slices, so wires and DMA engines work in parallel."
    " Slices are published only for rings",
    fitted_to="T12: 8 ranks, 4 to 32 MiB",
)
EFA_SHARE = Constant(
    EFA.usable_share,
    "fraction",
    "the part of EFA's rate that transfers reach: 279 of 400 GB/s [MC]",
)
NULL_EXECUTION = assumed(
    0.00012,
    "s",
    "launching a program without collectives",
    fitted_to="T16: the mean of its kernels that do nothing, 0.086 to 0.154 ms",
)
COLLECTIVE_CONSTANTS = _named(CONSTANTS, PLANNING_CONSTANTS)
"""The figures of collectives, by name."""
