"""What is exact, what is modelled, what is the host's: one table, with its evidence.

Every number carries one of three labels (design, section 5). A `Claim` says for one
kind of number which it is, after which document or by which choice, what switches the
choice, and which tests show it; every instruction class belongs to exactly one claim.
`as_markdown` makes the page docs/exactness.md of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Sequence

from neuronjax.hardware import CONTRADICTIONS
from neuronjax.ir import (
    algebra_set,
    block_set,
    collective_set,
    instruction_set,
    kernel_call,
)
from neuronjax.ir.instruction import Instruction, Label
from neuronjax.numerics.elementary import MAX_ULP

MEANINGS: dict[Label, str] = {
    "exact": "bit-exact to a published specification and to an independent oracle",
    "modelled": "the vendor is silent: our choice, named and versioned",
    "host": "outside every promise, and only on request",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed of one kind of number.

    Attributes:
        subject: the kind of number.
        label: how far the claim goes.
        rule: what is computed.
        source: the specification, or why there is none.
        switch: the policy field that changes it, "" for none.
        tests: files that show it.
        instructions: the instruction classes it covers.
    """

    subject: str
    label: Label
    rule: str
    source: str
    switch: str = ""
    tests: tuple[str, ...]
    instructions: tuple[str, ...] = ()


_ORACLE = "tests/conformance/test_oracle_"
_MATRIX = "tests/conformance/test_matrix.py"
_TENSOR = f"{_ORACLE}tensor_engine.py"
_CONTRACTION = f"{_ORACLE}contraction.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        subject="casts to nearest even",
        label="exact",
        rule="one rounding on the write; overflow to Inf, NaN (e4m3fn) or the largest",
        source="IEEE 754-2019, OCP OFP8 1.0, ml_dtypes; all 2^32 FP32 inputs",
        switch="overflow",
        tests=(
            "tests/numerics/test_rounding.py",
            "tests/numerics/test_casts_exhaustive.py",
        ),
        instructions=("TensorCopy", "ReducePrecision"),
    ),
    Claim(
        subject="integers, comparison, selection",
        label="exact",
        rule="two's complement, saturating casts from floats",
        source="StableHLO specification",
        switch="integer_path, float_to_int",
        tests=(f"{_ORACLE}elementwise.py", _MATRIX),
        instructions=("TensorTensor", "TensorScalar", "Compare", "Select"),
    ),
    Claim(
        subject="movement, gather, sort, top-k, control flow",
        label="exact",
        rule="no bit of a value changes; sorts are stable, ties by lower index",
        source="StableHLO specification",
        tests=(
            _MATRIX,
            "tests/conformance/test_constants.py",
            "tests/conformance/test_movement_forms.py",
            "tests/conformance/test_sort_forms.py",
        ),
        instructions=(
            "BitcastCopy",
            "DmaCopy",
            "Im2col",
            "Iota",
            "NcTranspose",
            "LocalGather",
            "Memset",
            "Sort",
            "SortBlock",
            "TopK",
            "Loop",
            "Branch",
            "Call",
            "RecordAmax",
            "ReadAmax",
        ),
    ),
    Claim(
        subject="movement between devices",
        label="exact",
        rule="no bit of a value changes; who is sent nothing has zeros",
        source="StableHLO specification",
        tests=("tests/execution/test_exchange_movement.py",),
        instructions=(
            "AllGather",
            "AllToAll",
            "CollectiveBroadcast",
            "CollectivePermute",
            "PartitionId",
            "RaggedAllToAll",
            "Spmd",
        ),
    ),
    Claim(
        subject="microscaling",
        label="exact",
        rule="blocks of 32, E8M0 scales by a named rule, elements rounded once",
        source="OCP MX 1.0; quantize_mx as of NKI 0.5 (rule neuron)",
        switch="mx_scale_rule, mx_weight_scale_rule, mx_layout",
        tests=(f"{_ORACLE}microscaling.py", "tests/numerics/test_microscaling.py"),
        instructions=("QuantizeMx",),
    ),
    Claim(
        subject="structured sparsity",
        label="exact",
        rule="the N largest magnitudes of every M stay; of equals the lower index",
        source="patterns: NeuronCore-v3 and -v4 pages; the tie rule is ours",
        switch="sparsity",
        tests=(_TENSOR, "tests/numerics/test_sparsity.py"),
        instructions=("Sparsify",),
    ),
    Claim(
        subject="products in TensorE",
        label="exact",
        rule="of 16-bit and narrower operands, exact in FP32 while in its range",
        source="arithmetic; all pairs of FP8 and FP4 codes",
        tests=("tests/numerics/test_casts_exhaustive.py", _CONTRACTION),
    ),
    Claim(
        subject="PSUM",
        label="exact",
        rule="tiles added in K order in FP32, or in BF16 with a rounding each (v4)",
        source="NeuronCore architecture guides",
        switch="psum_dtype",
        tests=(_TENSOR, _CONTRACTION),
    ),
    Claim(
        subject="XORWOW generator (Trainium3)",
        label="exact",
        rule="five xorshift words and a Weyl counter, six words of state to a lane",
        source="Marsaglia 2003; seeding and the step from word to float are ours",
        tests=("tests/numerics/test_generators.py",),
    ),
    Claim(
        subject="order of sums in TensorE",
        label="modelled",
        rule="down the rows of a K tile of 128, fused multiply-adds from +0",
        source="not documented: order, adder width, subnormals",
        switch="accumulation",
        tests=(_CONTRACTION, _MATRIX),
        instructions=("NcMatmul",),
    ),
    Claim(
        subject="FP32 operands in TensorE",
        label="modelled",
        rule="four passes of 12-bit halves, hh, hl, lh, ll, added in PSUM",
        source="documented: four times the cost; the split is not",
        switch="fp32_model",
        tests=(_CONTRACTION,),
    ),
    Claim(
        subject="double-row FP8",
        label="modelled",
        rule="K tile 256: a cell first adds the products of rows k and k + 128",
        source="documented: two products and an add per cell; not the rounding",
        tests=(_CONTRACTION,),
    ),
    Claim(
        subject="MX matmul",
        label="modelled",
        rule="K tile 512: operands dequantized to FP32, four products of a cell added "
        "left to right, then down the rows",
        source="documented: FP32 accumulation, K tile; not where scales are applied",
        switch="mx_layout",
        tests=(_TENSOR,),
        instructions=("NcMatmulMx",),
    ),
    Claim(
        subject="sparse matmul",
        label="modelled",
        rule="a compressed value times the row its tag selects; 128 to a tile",
        source="planned interface in the NeuronCore-v3 guide; no order is given",
        tests=(_TENSOR,),
        instructions=("NcMatmulSparse",),
    ),
    Claim(
        subject="sums in VectorE",
        label="modelled",
        rule="tiles of 512, each a left fold, themselves folded from init",
        source="not documented",
        switch="accumulation",
        tests=(f"{_ORACLE}reduction.py", "tests/conformance/test_window_forms.py"),
        instructions=("TensorReduce", "Pool", "PoolBlock"),
    ),
    Claim(
        subject="running sums",
        label="modelled",
        rule="one left fold along the axis, every prefix written",
        source="nki.isa tensor_tensor_scan; what the compiler does is not documented",
        tests=(f"{_ORACLE}reduction.py", "tests/conformance/test_window_forms.py"),
        instructions=("TensorTensorScan", "ScanBlock"),
    ),
    Claim(
        subject="reductions over devices",
        label="modelled",
        rule="FP32 sums in the order of the algorithm, rounded to the tensor's dtype "
        "wherever a rank stores a partial sum; kangaring on two cycles with the roles "
        "swapped, ring on one to four channels",
        source="documented: algorithms, steps, cycles, FP32 sums; order within a step "
        "and the ring's default of one channel are not",
        switch="collective_algorithm, collective_reduce_dtype, integer_path, "
        "implicit_integer_downcast",
        tests=(
            "tests/execution/test_exchange_oracle.py",
            "tests/ir/collectives/test_algorithms.py",
            "tests/execution/test_exchange.py",
            "tests/execution/test_spmd_host_devices.py",
            "tests/execution/test_spmd_programs.py",
        ),
        instructions=("AllReduce", "ReduceScatter"),
    ),
    Claim(
        subject="reductions and maps by any computation",
        label="modelled",
        rule="one left fold from init; every op of the computation rounds on its write",
        source="StableHLO leaves the order open",
        tests=("tests/conformance/test_reduction_forms.py",),
        instructions=("ReduceBlock", "MapBlock"),
    ),
    Claim(
        subject="selection in windows",
        label="modelled",
        rule="what an element collects is folded in row-major order of the windows",
        source="StableHLO leaves it open",
        tests=(f"{_ORACLE}reduction.py", "tests/conformance/test_window_forms.py"),
        instructions=("SelectAndScatter", "SelectAndScatterBlock"),
    ),
    Claim(
        subject="scatter",
        label="modelled",
        rule="updates in row-major order of the indices",
        source="StableHLO leaves it open",
        tests=(f"{_ORACLE}reduction.py", "tests/conformance/test_scatter_forms.py"),
        instructions=("LocalScatter", "ScatterBlock"),
    ),
    Claim(
        subject="elementary functions",
        label="modelled",
        rule="ours, the same bits everywhere: FP32 within the bounds below, 16-bit "
        "inputs correctly rounded",
        source="the tables of ScalarE are not published",
        switch="transcendentals",
        tests=(
            "tests/numerics/test_elementary.py",
            "tests/numerics/test_elementary_tables.py",
        ),
        instructions=("Activation",),
    ),
    Claim(
        subject="FP32 subnormals",
        label="modelled",
        rule="read and written as zeros of their sign, in every engine",
        source="not documented",
        tests=(f"{_ORACLE}elementwise.py",),
    ),
    Claim(
        subject="NaNs",
        label="modelled",
        rule="NaN wins maxima and minima; one bit pattern leaves a program",
        source="not documented",
        tests=(f"{_ORACLE}elementwise.py",),
    ),
    Claim(
        subject="Cholesky factors, triangular solves",
        label="modelled",
        rule="column by column; an element is a left fold of subtracted products, then "
        "divided",
        source="the vendor has no such routine",
        tests=(
            "tests/execution/engines/test_linear_algebra.py",
            "tests/conformance/test_linear_algebra.py",
        ),
        instructions=("Cholesky", "TriangularSolve"),
    ),
    Claim(
        subject="Fourier transforms",
        label="modelled",
        rule="radices 4, 2, then odd primes to 127, in FP32; beyond, Bluestein's "
        "convolution",
        source="the vendor has no such routine",
        tests=("tests/execution/engines/test_fft.py",),
        instructions=("Fft",),
    ),
    Claim(
        subject="FP8 scales per tensor",
        label="modelled",
        rule="largest power of two with which amax stays finite",
        source="software convention; the hardware has none",
        switch="scaling",
        tests=(f"{_ORACLE}contraction.py",),
        instructions=("ScaleFromAmax",),
    ),
    Claim(
        subject="stochastic rounding",
        label="modelled",
        rule="32 bits hashed from seed, call, instruction, loop counters, element",
        source="documented: which casts round so; bits and streams are not",
        switch="rounding, seed",
        tests=(
            f"{_ORACLE}stochastic.py",
            "tests/numerics/test_random_bits.py",
        ),
    ),
    Claim(
        subject="LFSR generator (before Trainium3)",
        label="modelled",
        rule="a maximal 32-bit shift register",
        source="documented: that it is an LFSR; not its polynomial",
        tests=("tests/numerics/test_generators.py",),
    ),
    Claim(
        subject="random numbers of the program",
        label="modelled",
        rule="the StableHLO algorithm that the program names (threefry, philox)",
        source="StableHLO names them; the vendor's lowering is not documented",
        tests=(_MATRIX,),
        instructions=("Rng",),
    ),
    Claim(
        subject="NKI kernels in a program",
        label="modelled",
        rule="the kernel's own instructions; the policy does not reach inside",
        source="nki.isa for each; order of addition as above",
        tests=("tests/nki/test_in_programs.py",),
        instructions=("NkiKernel",),
    ),
    Claim(
        subject="sums and functions of XLA",
        label="host",
        rule="whatever the host computes",
        source="speed",
        switch="accumulation, transcendentals",
        tests=("tests/conformance/test_policies.py",),
    ),
    Claim(
        subject="linear algebra of the host",
        label="host",
        rule="svd, qr, eigh, eig, schur, ... as JAX computes them on the host",
        source="no NeuronCore has them",
        switch="host_custom_calls",
        tests=("tests/conformance/test_host_calls.py",),
        instructions=("HostCall",),
    ),
)

INT8 = """\
One page of the vendor gives Trainium1 380 INT8 TOPS and another says "INT8 in, INT32
out". Against them: the architecture guide says that TensorE's output is always FP32,
`nc_matmul` takes no integer type, and the compiler states that Trainium2 and later have
no integer dot datapath. So there is no INT8 datapath here. Integer dots are exact, on
GpSimd (`integer_path="exact"`), or go through FP32 as the compiler does it, exact to
2^24 (`integer_path="fp32"`).
"""


def instruction_classes() -> dict[str, type[Instruction]]:
    """Every instruction by the name of its class."""
    return {
        name: cls
        for module in (
            instruction_set,
            block_set,
            algebra_set,
            collective_set,
            kernel_call,
        )
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Instruction)
        and not cls.__subclasses__()
        and not name.startswith("_")
    }


def as_markdown() -> str:
    """The page."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield "<!-- Made by `neuronjax exactness --markdown`; do not edit. -->"
    yield "# What is exact, what is modelled"
    yield ""
    yield "Every number that neuronjax computes carries one of three labels, also in"
    yield '`compiled.as_text("instructions")`. Equality with silicon is not claimed.'
    yield ""
    yield from _table(("label", "meaning"), MEANINGS.items())
    for label in MEANINGS:
        yield f"## {label.capitalize()}"
        yield ""
        heads = ("what", "rule", "source", "switch", "tests")
        yield from _table(heads, (_row(c) for c in CLAIMS if c.label == label))
    yield "## Elementary functions"
    yield ""
    yield "Largest error of FP32 results in units in the last place (ULP)."
    yield ""
    yield from _table(
        ("function", "ULP"), ((n, f"{u:g}") for n, u in sorted(MAX_ULP.items()))
    )
    yield "## INT8 on TensorE"
    yield ""
    yield INT8
    yield "## Where sources contradict each other"
    yield ""
    yield from _table(
        ("topic", "taken", "instead of", "sources"),
        ((c.topic, c.chosen, c.alternative, c.sources) for c in CONTRADICTIONS),
    )


def _row(claim: Claim) -> tuple[str, ...]:
    switches = ", ".join(f"`{s}`" for s in claim.switch.split(", ") if s)
    tests = ", ".join(f"`{t.rsplit('/', 1)[1]}`" for t in claim.tests)
    return (claim.subject, claim.rule, claim.source, switches, tests)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""
