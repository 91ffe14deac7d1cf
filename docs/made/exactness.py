"""The table of exact, modelled and host numbers, with the evidence for each.

Every number carries one of four labels. A `Claim` states for one kind of number its
label, its rule, the document or choice behind the rule, the policy field that changes
it, and the tests that cover it. Every instruction class belongs to exactly one claim.
`silicon.py` holds the measurements of chips. `page` makes docs/exactness.md from both,
and the copy of it in the package.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from docs.made import scalar_engine
from docs.made.silicon import EVIDENCE, SILENT
from neuronjax.ir.instruction import Label
from neuronjax.numerics.elementary import MAX_ULP

MEANINGS: dict[Label, str] = {
    "exact": "the number equals a published specification and a second, independent"
    " program, bit for bit; where the specification leaves a choice, the choice is"
    " ours",
    "modelled": "AWS does not document the number, and we chose a rule",
    "checked on silicon": "the number is modelled, and public measurements of a chip"
    " confirm our rule; the measurements may leave questions open",
    "host": "the host computes the number, only if the policy asks for it; we promise"
    " nothing about it",
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


_CLAIM = re.compile(
    r"(?P<label>[\w ]+): (?P<subject>.+?)\n(?P<rule>.+?)\n\[(?P<source>.+?)\]"
    r"(\nswitch: (?P<switch>.+?))?\ntests: (?P<tests>.+?)"
    r"(\ninstructions: (?P<instructions>.+))?",
    re.DOTALL,
)


def _read(text: str) -> Claim:
    """The claim of a paragraph, whose source is in brackets."""
    found = _CLAIM.fullmatch(text)
    assert found is not None, text
    parts = found.groupdict(default="").items()
    words = {name: " ".join(part.split()) for name, part in parts}
    tests = tuple(f"tests/{name}" for name in words.pop("tests").split())
    instructions = tuple(words.pop("instructions").split())
    fields: dict[str, Any] = words
    return Claim(**fields, tests=tests, instructions=instructions)


_TEXT = """
exact: casts to nearest even
each write rounds once; a number beyond the format's range becomes Inf, NaN (in e4m3fn)
or the largest number
[IEEE 754-2019, OCP OFP8 1.0, ml_dtypes; all 2^32 FP32 inputs were tested]
switch: overflow, round_trips
tests: numerics/test_rounding.py numerics/test_casts_exhaustive.py
instructions: TensorCopy ReducePrecision

exact: FP32 arithmetic
an add, subtract or multiply on the Vector, Scalar or GpSimd engine rounds once
[IEEE 754-2019]
tests: conformance/test_oracle_elementwise.py nki/test_published_sums.py

exact: integers, comparison, selection
two's complement; casts from floats saturate
[StableHLO specification]
switch: integer_path, integer_division, float_to_int
tests: conformance/test_oracle_elementwise.py conformance/test_matrix.py
instructions: TensorTensor TensorScalar Compare Select

exact: movement, gather, sort, top-k, control flow
no bit of a number changes; sorts are stable, and the lower index wins a tie
[StableHLO specification]
tests: conformance/test_matrix.py conformance/test_constants.py
conformance/test_movement_forms.py conformance/test_sort_forms.py
instructions: BitcastCopy DmaCopy Im2col Iota NcTranspose LocalGather Memset Sort
SortBlock TopK Loop Branch Call RecordAmax ReadAmax

exact: movement between devices
no bit of a number changes; a device that receives nothing gets zeros
[StableHLO specification]
tests: execution/test_exchange_movement.py
instructions: AllGather AllToAll CollectiveBroadcast CollectivePermute PartitionId
RaggedAllToAll Spmd

exact: microscaling
blocks of 32 elements have an E8M0 scale, which a named rule computes; each element is
rounded once
[OCP MX 1.0; quantize_mx of NKI 0.5 (`mx_scale_rule="neuron"`)]
switch: mx_scale_rule, mx_weight_scale_rule, mx_emax, mx_layout
tests: conformance/test_oracle_microscaling.py numerics/test_microscaling.py
instructions: QuantizeMx

exact: structured sparsity
the N largest magnitudes of every M elements are kept; of equal magnitudes, the one with
the lower index is kept
[the NeuronCore-v3 and -v4 pages give the patterns; the tie rule is ours]
switch: sparsity
tests: conformance/test_oracle_tensor_engine.py numerics/test_sparsity.py
instructions: Sparsify

exact: products in TensorE
products of 16-bit and narrower operands are exact in FP32 if they are in FP32's range
[arithmetic; all pairs of FP8 and FP4 codes were tested]
tests: numerics/test_casts_exhaustive.py conformance/test_oracle_contraction.py

exact: PSUM
the sums of tiles are added in K order in FP32, or in BF16 with one rounding for each
tile (NeuronCore-v4)
[NeuronCore architecture guides]
switch: psum_dtype
tests: conformance/test_oracle_tensor_engine.py conformance/test_oracle_contraction.py

exact: XORWOW generator (Trainium3)
five xorshift words and a Weyl counter are the state of a generator
[Marsaglia 2003; the seeding and the step from a word to a float are ours]
tests: numerics/test_generators.py

modelled: order of sums in TensorE
fused multiply-adds go down the rows of a K tile of 128, starting from +0
[the order, the adder's width and the treatment of subnormals are not documented]
switch: accumulation
tests: conformance/test_oracle_contraction.py conformance/test_matrix.py
instructions: NcMatmul

modelled: contractions that are no matmul
VectorE multiplies in FP32 and adds, and the policy casts no operand, for: products
without a contracted axis, contractions over an axis of length one, products of two
vectors, and batches of 128 or more matmuls (M x K by K x N) with M x N x K of at most
128
[XLA's algebraic simplifier, as jaxlib has it; the rule for batches is our assumption:
by the time model, TensorE would take ten times as long]
tests: lowering/test_products.py conformance/test_oracle_contraction.py

modelled: FP32 operands in TensorE
each operand is split into a high and a low half of 12 bits; four passes multiply high
by high, high by low, low by high and low by low, and PSUM adds their results; by
default, a pass splits the rows of a tile into groups of 32, adds the products of each
group, and then adds the sums of the groups in order; with fp32_4pass, a pass makes one
sum of all rows of a tile
[AWS documents the fourfold cost and row groups of 32; we chose the split and the sums
to fit published differences from NumPy (*distances*, see below); it is unknown whether
the products of narrower operands are also added in groups of 32 rows]
switch: fp32_model
tests: conformance/test_oracle_contraction.py

modelled: double-row FP8
FP8 matmuls that contract 256 or more elements have a K tile of 256: each cell of
TensorE's array first adds the products of rows k and k + 128
[the two products and one add per cell are documented; the rounding is not]
tests: conformance/test_oracle_contraction.py

modelled: MX matmul
K tile of 512: operands are dequantized to FP32; the four products of a cell are added
in order, then the cells are added down the rows
[FP32 accumulation and the K tile are documented; the point where scales are applied is
not]
switch: mx_layout
tests: conformance/test_oracle_tensor_engine.py
instructions: NcMatmulMx

modelled: sparse matmul
each compressed value is multiplied by the row that its tag selects; a tile has 128
compressed values
[the NeuronCore-v3 guide describes a planned interface, but no order of addition]
tests: conformance/test_oracle_tensor_engine.py
instructions: NcMatmulSparse

checked on silicon: short sums in VectorE
sums of up to 128 FP32 numbers are one left fold
[public measurements of trn1, below]
tests: nki/test_published_sums.py conformance/test_oracle_reduction.py

modelled: sums in VectorE
sums, and reductions that multiply, are split into tiles of 512; each tile is a left
fold, and then init and the results of the tiles are one left fold; with
accumulation="sequential", all elements are one left fold
[not documented; sums of up to 128 FP32 numbers were measured (see Checked on
silicon)]
switch: accumulation
tests: conformance/test_oracle_reduction.py conformance/test_window_forms.py
instructions: TensorReduce Pool PoolBlock

modelled: running sums
one left fold runs along the axis, and every prefix is written
[nki.isa tensor_tensor_scan; the compiler's choice is not documented]
tests: conformance/test_oracle_reduction.py conformance/test_window_forms.py
instructions: TensorTensorScan ScanBlock

modelled: reductions over devices
each rank (a device) adds in FP32, in the order of the algorithm, and rounds a partial
sum to the tensor's dtype when it stores the sum; a channel is a closed path through all
ranks in one direction, along which a part of the data is added; a ring has one to
four channels; kangaring, AWS's ring of pairs of ranks, has two channels with half of
the data each: on one channel, the first rank of every pair adds, and on the other, the
second rank
[algorithms, steps and FP32 sums are documented; the order within a step is not; one
channel as the default of the algorithm ring is our choice; errors EVRF061 and EVRF063
of AWS's compiler state that integers of 32 and 64 bits are reduced in FP32; overflow of
narrower integers is not documented, and wraps around here]
switch: collective_algorithm, collective_reduce_dtype, integer_path,
implicit_integer_downcast
tests: execution/test_exchange_oracle.py
ir/collectives/test_algorithms.py execution/test_exchange.py
execution/test_spmd_host_devices.py execution/test_spmd_programs.py
instructions: AllReduce ReduceScatter

modelled: reductions and maps by any computation
a reduction is one left fold from init; every op of the computation rounds when it
writes
[StableHLO leaves the order open]
tests: conformance/test_reduction_forms.py
instructions: ReduceBlock MapBlock

modelled: selection in windows
if several windows select one element, their values are added to it in row-major order
of the windows
[StableHLO leaves the order open]
tests: conformance/test_oracle_reduction.py conformance/test_window_forms.py
instructions: SelectAndScatter SelectAndScatterBlock

modelled: scatter
updates are applied in row-major order of the indices
[StableHLO leaves the order open]
tests: conformance/test_oracle_reduction.py conformance/test_scatter_forms.py
instructions: LocalScatter ScatterBlock

modelled: elementary functions
our own functions, with the same bits everywhere: FP32 results are within the bounds
below, and results for 16-bit inputs are correctly rounded
[the tables of ScalarE are not published]
switch: transcendentals
tests: numerics/test_elementary.py numerics/test_elementary_tables.py
instructions: Activation

modelled: functions of ScalarE as its tables compute them
piecewise cubics with the engine's error where that is known (see below); used only on
request
[measured errors of kernels on Trainium2; US patent 10,740,432]
switch: transcendentals
tests: numerics/test_scalar_engine.py numerics/test_scalar_engine_silicon.py
execution/test_scalar_engine.py

modelled: FP32 subnormals
in arithmetic, every engine reads and writes them as zeros of the same sign; movement
and changes of sign keep them
[not documented]
tests: conformance/test_oracle_elementwise.py

modelled: NaNs
a NaN wins every maximum and minimum; every NaN that leaves a program has the same bit
pattern, also a NaN that was only moved
[not documented]
tests: conformance/test_oracle_elementwise.py

modelled: Cholesky factors, triangular solves
computed column by column; for each element, a left fold subtracts products, and the
result is divided
[AWS has no such routine]
tests: execution/engines/test_linear_algebra.py conformance/test_linear_algebra.py
instructions: Cholesky TriangularSolve

modelled: Fourier transforms
radices 4 and 2, then odd primes to 127, in FP32; larger primes use Bluestein's
convolution
[AWS has no such routine]
tests: execution/engines/test_fft.py
instructions: Fft

modelled: FP8 scales per tensor
the largest power of two with which amax (the largest magnitude) stays finite
[a software convention; the hardware has no such scales]
switch: scaling
tests: conformance/test_oracle_contraction.py
instructions: ScaleFromAmax

modelled: stochastic rounding
32 bits are hashed from the seed, call, instruction, loop counters and element
[the casts that round stochastically are documented; their bits and streams are not]
switch: rounding, seed
tests: conformance/test_oracle_stochastic.py numerics/test_random_bits.py

modelled: LFSR generator (before Trainium3)
a 32-bit shift register of maximal length
[AWS documents that it is an LFSR, but not its polynomial]
tests: numerics/test_generators.py

modelled: random numbers of the program
the StableHLO algorithm that the program names (threefry, philox)
[StableHLO names them; AWS's lowering is not documented]
tests: conformance/test_matrix.py
instructions: Rng

modelled: NKI kernels in a program
the kernel's own instructions; of a policy, only rounding and transcendentals apply
inside
[nki.isa for each instruction; orders of addition as above]
tests: nki/test_in_programs.py
instructions: NkiKernel

host: sums and functions of XLA
the host computes them, in XLA's order
[only on request, for speed]
switch: accumulation, transcendentals
tests: conformance/test_policies.py

host: linear algebra and callbacks of the host
the host computes svd, qr, eigh, eig, schur and similar functions, and the functions of
pure_callback and io_callback
[no NeuronCore has them]
switch: host_custom_calls, callbacks
tests: conformance/test_host_calls.py conformance/test_callbacks.py
instructions: HostCall
"""

CLAIMS = tuple(map(_read, _TEXT.strip().split("\n\n")))

ZEROS = """\
The bounds of lgamma and digamma hold for arguments of 0 or more. For a negative x, the
error is at most n 2^-23 times the largest of 1, |f(x)| and |f(-x)|; n is the table's
number of ULPs. Relative to a result near zero, this can be large: next to lgamma's
zeros, results have errors of up to 45 %, and the result for one number next to
digamma's zero at -2.61 has the wrong sign.
"""

INT8 = """\
Two of AWS's pages claim INT8 matmuls: one gives Trainium1 380 INT8 TOPS, and
another says "INT8 in, INT32 out". Three other sources contradict them:

- The architecture guide says that TensorE's output is always FP32.
- `nc_matmul` takes no integer type.
- The compiler states that Trainium2 and later have no integer dot datapath.

neuronjax therefore has no INT8 datapath, except on inf1, whose page names INT8 among
TensorE's operands. On inf1, INT8 operands are multiplied unchanged. We assume that
their sums are FP32, as on NeuronCore-v2. On all other chips, `integer_path` decides:
with `"auto"` or `"exact"`, integer dots are exact on GpSimdE; with `"fp32"`, they go
through FP32 as the compiler does it, and are exact to 2^24.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "<!-- Made by `make docs-update`; do not edit. -->"
    yield "# What is exact, what is modelled"
    yield ""
    yield "Every number that neuronjax computes has one of four labels."
    yield '`nj.jit(f).lower(*args).as_text("instructions")` prints the label of every'
    yield "instruction. We claim that numbers equal a chip's only where a row of"
    yield "[Measurements of chips](#measurements-of-chips) shows it."
    yield ""
    yield from _table(("label", "meaning"), MEANINGS.items())
    yield "There is a table for each label. Its column *switch* has the policy fields"
    yield "that change the rule, and *tests* the files that test it. TensorE is the"
    yield "matrix engine of a core; VectorE, ScalarE and GpSimdE are the other engines."
    yield "The tables use these words:"
    yield ""
    yield "- The *operands* of a matmul are multiplied along the axis K."
    yield "- A *tile* is the part of an axis that an engine adds at once. A tile of"
    yield "  TensorE is a part of K; the sums of tiles are added in the memory *PSUM*."
    yield "- A *left fold* adds elements one by one, from the first to the last."
    yield "- *NeuronCore-v2* is the core of trn1 and inf2, *NeuronCore-v3* that of"
    yield "  trn2, and *NeuronCore-v4* that of trn3."
    yield ""
    for label in MEANINGS:
        yield f"## {label.capitalize()}"
        yield ""
        heads = ("what", "rule", "source", "switch", "tests")
        yield from _table(heads, (_row(c) for c in CLAIMS if c.label == label))
    yield from _silicon()
    yield "## Elementary functions"
    yield ""
    yield "These are our default functions. The table has the largest error of their"
    yield "FP32 results, in units in the last place (ULP)."
    yield ""
    yield from _table(
        ("function", "ULP"), ((n, f"{u:g}") for n, u in sorted(MAX_ULP.items()))
    )
    yield ZEROS
    yield f"## {scalar_engine.TITLE}"
    yield ""
    yield 'With `transcendentals="scalar_engine"`, a policy computes elementary'
    yield "functions as ScalarE does: each function is a table of cubics, one for"
    yield "each segment of an octave (2^n to 2^(n+1)) of |x|. *Error* is the largest"
    yield "error in a segment, divided by the largest value in that segment. *Size of"
    yield "the error* states whether we guessed this error or a measurement shows it,"
    yield "and *shown by* which measurement. *In programs* is the op that uses the"
    yield "function; functions without such an op are used in NKI kernels only. All"
    yield "results of these functions are labelled *modelled*. [ScalarE's"
    yield "functions](scalar-engine.md) has the evidence."
    yield ""
    yield from _table(scalar_engine.HEADS, scalar_engine.section())
    yield "## INT8 on TensorE"
    yield ""
    yield INT8
    yield "## Where sources contradict each other"
    yield ""
    yield "For some facts about the hardware, two published sources disagree."
    yield "[Hardware](hardware.md#contradictions), a page of the built site (`make"
    yield "docs`), lists the figure that we use, the other figure, and the sources."


def _silicon() -> Iterator[str]:
    yield "## Measurements of chips"
    yield ""
    yield "Third parties measured these results on real chips and published them."
    yield "Each row compares one measurement with a claim of the tables above:"
    yield ""
    yield "- *Result* states whether the measurement confirms or contradicts the claim."
    yield "- *Measured* is the chip's result, and *here* neuronjax's result for the"
    yield "  same kernel."
    yield "- *Shown by* is our program that compares the two results."
    yield "- *Open* is what the measurement does not show. For every row of trn1, it is"
    yield "  also open whether trn2 gives the same result."
    yield ""
    yield "A *distance* is the relative L2 norm of the difference from the same kernel"
    yield "in NumPy's FP32. NumPy's own error is part of every distance. Numbers"
    yield "without a unit are distances, unless the row says otherwise. Independent"
    yield "errors add as the root of the sum of their squares (*in quadrature*)."
    yield "[Benchmarks](benchmarks.md#what-trn2-does-with-fp32-operands)"
    yield "compares our model of FP32 operands in TensorE with 25 others."
    yield ""
    yield from _table(
        ("claim", "result", "chip", "measured", "here", "source", "shown by", "open"),
        (
            (
                e.subject, e.verdict, e.chip, e.device, e.here, e.source,
                f"`{e.shown_by.rsplit('/', 1)[1]}`", e.unexplained,
            )
            for e in EVIDENCE
        ),
    )  # fmt: skip
    yield "No public measurement decides the following:"
    yield ""
    yield from (f"- {what}: {why}" for what, why in SILENT)
    yield ""


def _row(claim: Claim) -> tuple[str, ...]:
    switches = ", ".join(f"`{s}`" for s in claim.switch.split(", ") if s)
    names = [t.rsplit("/", 1)[1] for t in claim.tests]
    tests = ", ".join(
        # Files of the same name are told apart by their folders.
        f"`{name if names.count(name) == 1 else path.removeprefix('tests/')}`"
        for name, path in zip(names, claim.tests, strict=True)
    )
    return (claim.subject, claim.rule, claim.source, switches, tests)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""
