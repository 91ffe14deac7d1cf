"""What is exact, what is modelled, what is the host's: one table, with its evidence.

Every number carries one of four labels (design, section 5). A `Claim` says for one
kind of number which it is, after which document or by which choice, what switches the
choice, and which tests show it; every instruction class belongs to exactly one claim.
What chips say about claims is in `silicon.py`. `page` makes docs/exactness.md of both,
and the copy of it that the package carries.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from docs.made import scalar_engine
from docs.made.silicon import EVIDENCE, SILENT
from docs.pages.contradictions import CONTRADICTIONS
from neuronjax.ir.instruction import Label
from neuronjax.numerics.elementary import MAX_ULP

MEANINGS: dict[Label, str] = {
    "exact": "bit-exact to a published specification and to an independent oracle",
    "modelled": "the vendor is silent: our choice, named and versioned",
    "checked on silicon": "a choice that public measurements of a chip confirm, with"
    " what they leave open",
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
one rounding on the write; overflow to Inf, NaN (e4m3fn) or the largest
[IEEE 754-2019, OCP OFP8 1.0, ml_dtypes; all 2^32 FP32 inputs]
switch: overflow, round_trips
tests: numerics/test_rounding.py numerics/test_casts_exhaustive.py
instructions: TensorCopy ReducePrecision

exact: FP32 arithmetic
add, subtract and multiply on Vector, Scalar and GpSimd engines round once
[IEEE 754-2019]
tests: conformance/test_oracle_elementwise.py nki/test_published_sums.py

exact: integers, comparison, selection
two's complement, saturating casts from floats
[StableHLO specification]
switch: integer_path, integer_division, float_to_int
tests: conformance/test_oracle_elementwise.py conformance/test_matrix.py
instructions: TensorTensor TensorScalar Compare Select

exact: movement, gather, sort, top-k, control flow
no bit of a value changes; sorts are stable, ties by lower index
[StableHLO specification]
tests: conformance/test_matrix.py conformance/test_constants.py
conformance/test_movement_forms.py conformance/test_sort_forms.py
instructions: BitcastCopy DmaCopy Im2col Iota NcTranspose LocalGather Memset Sort
SortBlock TopK Loop Branch Call RecordAmax ReadAmax

exact: movement between devices
no bit of a value changes; a device that receives nothing gets zeros
[StableHLO specification]
tests: execution/test_exchange_movement.py
instructions: AllGather AllToAll CollectiveBroadcast CollectivePermute PartitionId
RaggedAllToAll Spmd

exact: microscaling
blocks of 32, E8M0 scales by a named rule, elements rounded once
[OCP MX 1.0; quantize_mx as of NKI 0.5 (rule neuron)]
switch: mx_scale_rule, mx_weight_scale_rule, mx_emax, mx_layout
tests: conformance/test_oracle_microscaling.py numerics/test_microscaling.py
instructions: QuantizeMx

exact: structured sparsity
the N largest magnitudes of every M stay; of equal values the lower index is kept
[patterns: NeuronCore-v3 and -v4 pages; the tie rule is ours]
switch: sparsity
tests: conformance/test_oracle_tensor_engine.py numerics/test_sparsity.py
instructions: Sparsify

exact: products in TensorE
of 16-bit and narrower operands, exact in FP32 while in its range
[arithmetic; all pairs of FP8 and FP4 codes]
tests: numerics/test_casts_exhaustive.py conformance/test_oracle_contraction.py

exact: PSUM
tiles added in K order in FP32, or in BF16 with a rounding each (v4)
[NeuronCore architecture guides]
switch: psum_dtype
tests: conformance/test_oracle_tensor_engine.py conformance/test_oracle_contraction.py

exact: XORWOW generator (Trainium3)
five xorshift words and a Weyl counter, six words of state to a lane
[Marsaglia 2003; seeding and the step from word to float are ours]
tests: numerics/test_generators.py

modelled: order of sums in TensorE
down the rows of a K tile of 128, fused multiply-adds from +0
[not documented: order, adder width, subnormals]
switch: accumulation
tests: conformance/test_oracle_contraction.py conformance/test_matrix.py
instructions: NcMatmul

modelled: contractions that are no matmul
without contraction, over an axis of length one, or of vectors with vectors; and 128 or
more matmuls of up to 128 products each: VectorE multiplies in FP32 and adds, and no
auto-cast changes the operands
[XLA's algebraic simplifier, as jaxlib has it; for the last an ASSUMPTION by the time
model]
tests: lowering/test_products.py conformance/test_oracle_contraction.py

modelled: FP32 operands in TensorE
four passes of 12-bit halves, hh, hl, lh, ll, added in PSUM; each a sum for every 32
rows, these added in order, or (fp32_4pass) one sum of all rows
[documented: four times the cost, row groups of 32; the split and the sums are not, and
published distances choose; whether narrower operands are added by 32 rows is not known]
switch: fp32_model
tests: conformance/test_oracle_contraction.py

modelled: double-row FP8
K tile 256: a cell first adds the products of rows k and k + 128
[documented: two products and an add per cell; not the rounding]
tests: conformance/test_oracle_contraction.py

modelled: MX matmul
K tile 512: operands dequantized to FP32, four products of a cell added left to right,
then down the rows
[documented: FP32 accumulation, K tile; not where scales are applied]
switch: mx_layout
tests: conformance/test_oracle_tensor_engine.py
instructions: NcMatmulMx

modelled: sparse matmul
a compressed value times the row its tag selects; 128 to a tile
[planned interface in the NeuronCore-v3 guide; no order is given]
tests: conformance/test_oracle_tensor_engine.py
instructions: NcMatmulSparse

checked on silicon: short sums in VectorE
up to 128 FP32 numbers: one left fold
[public measurements of trn1, below]
tests: nki/test_published_sums.py conformance/test_oracle_reduction.py

modelled: sums in VectorE
longer ones and products: tiles of 512, each a left fold, themselves folded from init;
or one left fold (sequential)
[not documented]
switch: accumulation
tests: conformance/test_oracle_reduction.py conformance/test_window_forms.py
instructions: TensorReduce Pool PoolBlock

modelled: running sums
one left fold along the axis, every prefix written
[nki.isa tensor_tensor_scan; what the compiler does is not documented]
tests: conformance/test_oracle_reduction.py conformance/test_window_forms.py
instructions: TensorTensorScan ScanBlock

modelled: reductions over devices
FP32 sums in the order of the algorithm, rounded to the tensor's dtype wherever a rank
stores a partial sum; kangaring on two cycles with the roles swapped, ring on one to
four channels
[documented: algorithms, steps, cycles, FP32 sums; order within a step and the ring's
default of one channel are not; integers of 32 and 64 bits are reduced in FP32 (EVRF061,
EVRF063), what narrower ones do beyond their range is not documented: they wrap around]
switch: collective_algorithm, collective_reduce_dtype, integer_path,
implicit_integer_downcast
tests: execution/test_exchange_oracle.py
ir/collectives/test_algorithms.py execution/test_exchange.py
execution/test_spmd_host_devices.py execution/test_spmd_programs.py
instructions: AllReduce ReduceScatter

modelled: reductions and maps by any computation
one left fold from init; every op of the computation rounds on its write
[StableHLO leaves the order open]
tests: conformance/test_reduction_forms.py
instructions: ReduceBlock MapBlock

modelled: selection in windows
what an element collects is folded in row-major order of the windows
[StableHLO leaves it open]
tests: conformance/test_oracle_reduction.py conformance/test_window_forms.py
instructions: SelectAndScatter SelectAndScatterBlock

modelled: scatter
updates in row-major order of the indices
[StableHLO leaves it open]
tests: conformance/test_oracle_reduction.py conformance/test_scatter_forms.py
instructions: LocalScatter ScatterBlock

modelled: elementary functions
ours, the same bits everywhere: FP32 within the bounds below, 16-bit inputs correctly
rounded
[the tables of ScalarE are not published]
switch: transcendentals
tests: numerics/test_elementary.py numerics/test_elementary_tables.py
instructions: Activation

modelled: functions of ScalarE as its tables compute them
piecewise cubics, as coarse as the engine's where that is known, see below; only on
request
[measured errors of kernels on Trainium2; US patent 10,740,432]
switch: transcendentals
tests: numerics/test_scalar_engine.py numerics/test_scalar_engine_silicon.py
execution/test_scalar_engine.py

modelled: FP32 subnormals
read and written as zeros of their sign, in every engine
[not documented]
tests: conformance/test_oracle_elementwise.py

modelled: NaNs
NaN wins maxima and minima; one bit pattern leaves a program
[not documented]
tests: conformance/test_oracle_elementwise.py

modelled: Cholesky factors, triangular solves
column by column; an element is a left fold of subtracted products, then divided
[the vendor has no such routine]
tests: execution/engines/test_linear_algebra.py conformance/test_linear_algebra.py
instructions: Cholesky TriangularSolve

modelled: Fourier transforms
radices 4, 2, then odd primes to 127, in FP32; beyond, Bluestein's convolution
[the vendor has no such routine]
tests: execution/engines/test_fft.py
instructions: Fft

modelled: FP8 scales per tensor
largest power of two with which amax stays finite
[software convention; the hardware has none]
switch: scaling
tests: conformance/test_oracle_contraction.py
instructions: ScaleFromAmax

modelled: stochastic rounding
32 bits hashed from seed, call, instruction, loop counters, element
[documented: which casts round so; bits and streams are not]
switch: rounding, seed
tests: conformance/test_oracle_stochastic.py numerics/test_random_bits.py

modelled: LFSR generator (before Trainium3)
a maximal 32-bit shift register
[documented: that it is an LFSR; not its polynomial]
tests: numerics/test_generators.py

modelled: random numbers of the program
the StableHLO algorithm that the program names (threefry, philox)
[StableHLO names them; the vendor's lowering is not documented]
tests: conformance/test_matrix.py
instructions: Rng

modelled: NKI kernels in a program
the kernel's own instructions; only a policy's rounding and transcendentals apply
inside
[nki.isa for each; order of addition as above]
tests: nki/test_in_programs.py
instructions: NkiKernel

host: sums and functions of XLA
whatever the host computes
[speed]
switch: accumulation, transcendentals
tests: conformance/test_policies.py

host: linear algebra and callbacks of the host
svd, qr, eigh, eig, schur, ... and pure_callback, io_callback as the host computes them
[no NeuronCore has them]
switch: host_custom_calls, callbacks
tests: conformance/test_host_calls.py conformance/test_callbacks.py
instructions: HostCall
"""

CLAIMS = tuple(map(_read, _TEXT.strip().split("\n\n")))

ZEROS = """\
For lgamma and digamma that is relative to the result from 0 on, at their zeros too.
Left of 0 both reflect, f(x) from f(|x|) or f(1 - x), and the terms cancel at the zeros.
With n the ULPs of the table the error there is at most n 2^-23 times the largest of 1,
the result and the function at -x (in size), and no relative bound holds: FP32 numbers
next to lgamma's zeros err by up to 45 % of the result, and one next to digamma's zero
at -2.61 has the other sign.
"""

INT8 = """\
One page of the vendor gives Trainium1 380 INT8 TOPS and another says "INT8 in, INT32
out". Against them: the architecture guide says that TensorE's output is always FP32,
`nc_matmul` takes no integer type, and the compiler states that Trainium2 and later have
no integer dot datapath. So there is no INT8 datapath here but on inf1, whose page names
INT8 among TensorE's operands: INT8 is multiplied there as it is, and its sums are FP32
(a projection). Elsewhere integer dots are exact, on
GpSimd (`integer_path="auto"` or `"exact"`), or go through FP32 as the compiler does it,
exact to 2^24 (`integer_path="fp32"`). Reductions of 32- and 64-bit integers over
devices go through FP32 by default: that is all that their hardware can do.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "<!-- Made by `make docs-update`; do not edit. -->"
    yield "# What is exact, what is modelled"
    yield ""
    yield "Every number that neuronjax computes carries one of four labels, also in"
    yield '`compiled.as_text("instructions")`. Equality with silicon is claimed where a'
    yield "row [below](#measurements-of-chips) shows it, and nowhere else."
    yield ""
    yield from _table(("label", "meaning"), MEANINGS.items())
    for label in MEANINGS:
        yield f"## {label.capitalize()}"
        yield ""
        heads = ("what", "rule", "source", "switch", "tests")
        yield from _table(heads, (_row(c) for c in CLAIMS if c.label == label))
    yield from _silicon()
    yield "## Elementary functions"
    yield ""
    yield "Largest error of FP32 results in units in the last place (ULP)."
    yield ""
    yield from _table(
        ("function", "ULP"), ((n, f"{u:g}") for n, u in sorted(MAX_ULP.items()))
    )
    yield ZEROS
    yield f"## {scalar_engine.TITLE}"
    yield ""
    yield "[What they compute, and what shows it](scalar-engine.md)."
    yield ""
    yield from _table(scalar_engine.HEADS, scalar_engine.section())
    yield "## INT8 on TensorE"
    yield ""
    yield INT8
    yield "## Where sources contradict each other"
    yield ""
    yield from _table(
        ("topic", "taken", "instead of", "sources"),
        ((c.topic, c.chosen, c.alternative, c.sources) for c in CONTRADICTIONS),
    )


def _silicon() -> Iterator[str]:
    yield "## Measurements of chips"
    yield ""
    yield "What third parties measured on real chips and published. Distances are"
    yield "relative L2 norms of the difference from FP32 NumPy, which has an error of"
    yield "its own."
    yield ""
    yield from _table(
        ("claim", "", "chip", "the chip", "here", "source", "shown by", "open"),
        (
            (
                e.subject, e.verdict, e.chip, e.device, e.here, e.source,
                f"`{e.shown_by.rsplit('/', 1)[1]}`", e.unexplained,
            )
            for e in EVIDENCE
        ),
    )  # fmt: skip
    yield "No public measurement says anything about:"
    yield ""
    yield from (f"- {what}: {why}" for what, why in SILENT)
    yield ""


def _row(claim: Claim) -> tuple[str, ...]:
    switches = ", ".join(f"`{s}`" for s in claim.switch.split(", ") if s)
    tests = ", ".join(f"`{t.rsplit('/', 1)[1]}`" for t in claim.tests)
    return (claim.subject, claim.rule, claim.source, switches, tests)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""
