"""What public measurements of real chips say about our numbers, row by row.

Third parties ran kernels on trn1 and trn2 and published sums or distances. A row says
what the chip gave, what the emulator gives, who shows it, and what stays unexplained:
it confirms a claim of `exactness.py` or contradicts it. `SILENT` is what no row
says anything about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["confirmed", "contradicted"]

_GRADER = "LaelaZorana/kernel-grader-mi300x-rocm-trainium-nki, kernel-nki"
_KDA = "Jerry2423/kda-for-trainium"
_SUMS = "tests/nki/test_published_sums.py"
_ROWS = "benchmarks/validate_numerics.py"
_FORMATS = "tests/numerics/test_float_format.py"
_ELEMENTWISE = "tests/lowering/test_elementwise.py"
_TABLES = "tests/numerics/test_scalar_engine_silicon.py"
_MODELS = "benchmarks/fp32_models.py"
_KILN = "foxl-ai/kiln, docs/neuron-notes.md"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One public measurement, held against a claim.

    Attributes:
        subject: of the claim, in `exactness.py`.
        verdict: what it does to the claim.
        chip: that was measured.
        device: what it gave. Distances are relative L2, from FP32 NumPy.
        here: what the emulator gives for the same.
        source: who measured.
        shown_by: the test or the program that compares.
        unexplained: what it leaves open.
    """

    subject: str
    verdict: Verdict
    chip: str
    device: str
    here: str
    source: str
    shown_by: str
    unexplained: str


EVIDENCE: tuple[Evidence, ...] = (
    Evidence(
        subject="short sums in VectorE",
        verdict="confirmed",
        chip="trn1",
        device="16,384 sums of 128 FP32 numbers and as many of 127 are the sequential"
        " FP32 sum; two runs and both cores alike",
        here="the same bits, in all of them",
        source=_GRADER,
        shown_by=_SUMS,
        unexplained="positive numbers, on trn1 alone; that trn2 and trn3 add alike is"
        " taken for granted",
    ),
    Evidence(
        subject="FP32 arithmetic",
        verdict="confirmed",
        chip="trn1",
        device="65,536 sums of two FP32 numbers are NumPy's, for each of four seeds",
        here="the same bits",
        source=_GRADER,
        shown_by=_SUMS,
        unexplained="one operator, no special values",
    ),
    Evidence(
        subject="FP32 arithmetic",
        verdict="confirmed",
        chip="trn2",
        device="rope_v1 (multiply, add, subtract): distance 0.0",
        here="0.0",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="",
    ),
    Evidence(
        subject="casts to nearest even",
        verdict="confirmed",
        chip="trn2",
        device="swiglu_v2_only_down, a matmul as three products of BF16 halves:"
        " 4.476e-6",
        here="4.474e-6",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="bits are not published; halves that are cut off and not rounded"
        " would be six times as far",
    ),
    Evidence(
        subject="products in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="the same row",
        here="the same",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="the order of addition is below what it can tell",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="A.T @ A of linspace(-1, 1, 512 x 512) in K tiles of 64 rows is at most"
        " 6.1035e-5 from the same in tiles of 128",
        here="6.1035e-5; 1.83e-4 in sums of all rows (fp32_4pass)",
        source="a public test, reported without its place",
        shown_by=_MODELS,
        unexplained="bits are not published; sums of 16 rows, exact sums and four"
        " products of whole operands added at once give the same",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="K = 64: 1.8e-7, of which NumPy's own error is 1.44e-7",
        here="1.85e-7; 2.08e-7 in sums of all rows (fp32_4pass)",
        source=_KDA,
        shown_by=_MODELS,
        unexplained="which model is right: beside sums of 32 rows, of three passes or"
        " in another order too, sums of 16 rows and four products of whole operands"
        " added at once are within a tenth of every row in some blocks; sums of 8,"
        " 64 or 128 rows, other halves and exact sums are not",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="K = 2048: 3.987e-7; swiglu_v1, K = 1024 and 3072: 6.36e-7",
        here="3.63e-7; 5.77e-7 with NumPy in blocks of 320 rows (Sapphire Rapids, Zen);"
        " 4.13e-7 and 6.28e-7 in blocks of 448 (Skylake-X)",
        source=_KDA,
        shown_by=_MODELS,
        unexplained="NumPy's own error is most of it, and the host that computed it is"
        " not known",
    ),
    Evidence(
        subject="elementary functions",
        verdict="contradicted",
        chip="trn2",
        device="gqa_full_v2_twophase, softmax attention: 2.874e-6",
        here="7.3e-7",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="ScalarE's exp is coarser than ours, by tables that are not"
        " published: four such kernels are 2.8e-6 to 2.9e-6 farther off in quadrature,"
        " whatever their matmuls are",
    ),
    Evidence(
        subject="elementary functions",
        verdict="contradicted",
        chip="trn2",
        device="matmul_add_rmsnorm_v2_bf16_split: 1.545e-5",
        here="4.45e-6",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="ScalarE's rsqrt is coarser than ours, or its square: 1.48e-5 in"
        " quadrature",
    ),
    Evidence(
        subject="functions of ScalarE as its tables compute them",
        verdict="confirmed",
        chip="trn2",
        device="add_rmsnorm_matmul_v1: 1.4635e-5; matmul_add_rmsnorm_v2_bf16_split:"
        " 1.545e-5; attention, gqa_full_v2, v5, v6 and v8: 2.874e-6, 5.422e-6, 5.448e-6"
        " and 7.009e-6",
        here="1.462e-5; 1.544e-5; 2.718e-6, 5.331e-6, 5.371e-6 and 6.946e-6",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="1.2e-6 of the attention's, in quadrature; every bit within a"
        " segment; all functions but rsqrt and exp",
    ),
    Evidence(
        subject="elementary functions",
        verdict="confirmed",
        chip="trn2",
        device="swiglu_v1 with silu of ScalarE: 6.36e-7",
        here="6.35e-7",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="silu's error is hidden by that of the matmuls, 4e-7",
    ),
    Evidence(
        subject="casts to nearest even",
        verdict="confirmed",
        chip="trn1",
        device="e4m3: 0x78 to 0x7E and 0xF8 to 0xFE are read as Inf or NaN, all other"
        " codes as the host reads them: the largest number is 240",
        here="the same codes of float8_e4m3",
        source=_KILN,
        shown_by=_FORMATS,
        unexplained="which are Inf, and what a cast makes of numbers beyond 240",
    ),
    Evidence(
        subject="casts to nearest even",
        verdict="contradicted",
        chip="trn1",
        device="FP32 cast to BF16 and back in a graph: the compiler folds both, and"
        " nothing is rounded",
        here='rounded; with round_trips="folded" not',
        source=_KILN,
        shown_by=_ELEMENTWISE,
        unexplained="what may stand between the two casts; whether trn2 was meant too",
    ),
    Evidence(
        subject="integers, comparison, selection",
        verdict="contradicted",
        chip="trn1",
        device="int64: 6284 r // 6284 is r - 1 for r of 1 to 4 and 6 to 8; by 4768 and"
        " powers of two exact",
        here='r; with integer_division="reciprocal" what the device gives, for these r',
        source=_KILN,
        shown_by=_ELEMENTWISE,
        unexplained="other widths, divisors that are no constants, remainders; whether"
        " trn2 was meant too",
    ),
    Evidence(
        subject="movement, gather, sort, top-k, control flow",
        verdict="confirmed",
        chip="trn1",
        device="a transpose by an identity on TensorE is exact to the bit",
        here="the same",
        source=_KILN,
        shown_by="tests/nki/test_matmul_kernels.py",
        unexplained="of which dtypes; whether trn2 was meant too",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn1",
        device="FP32 matmuls are exact to 1.6e-7",
        here="1.2e-7 for K of 64 and 128, from float64",
        source=_KILN,
        shown_by=_SUMS,
        unexplained="of which K, and in which norm; whether trn2 was meant too",
    ),
    Evidence(
        subject="functions of ScalarE as its tables compute them",
        verdict="confirmed",
        chip="trn1",
        device="exp is within 1.5e-5 from -85 to 85, relative, median 1.5e-6",
        here="within 1.2e-5 from -76 to 85, median 6e-7",
        source=_KILN,
        shown_by=_TABLES,
        unexplained="half of the median; whether trn2 was meant too",
    ),
    Evidence(
        subject="functions of ScalarE as its tables compute them",
        verdict="contradicted",
        chip="trn1",
        device="the same below -76",
        here="up to 9 % off at -85: products below 2^-126 are lost",
        source=_KILN,
        shown_by=_TABLES,
        unexplained="in which order the engine scales a polynomial",
    ),
    Evidence(
        subject="FP32 subnormals",
        verdict="confirmed",
        chip="trn1",
        device="exp is zero below -87",
        here="zero below -87.34, the logarithm of 2^-126",
        source=_KILN,
        shown_by=_TABLES,
        unexplained="where between the two; operands; engines other than ScalarE",
    ),
)

#: What no public row says anything about -> why.
SILENT: tuple[tuple[str, str], ...] = (
    (
        "sums of more than 128 numbers on VectorE",
        "RMSNorm's sums of 2,048 squares end in an rsqrt whose error is larger; tiles"
        ' of 512 and one left fold (`accumulation="sequential"`) are both possible',
    ),
    (
        "reciprocal and divide of VectorE",
        "in attention alone, below the error of exp",
    ),
    (
        "bn_stats, tensor_tensor_scan",
        "Mamba's scan is within the 3e-5 that its author asked for; no figure is"
        " public",
    ),
    (
        "casts on write to FP16, FP8 and integers",
        "no row has one; those to BF16 are confirmed, and how codes of e4m3 are read",
    ),
    ("GpSimdE", "no row has an instruction of it"),
    (
        "subnormal operands, NaNs, infinities, signed zeros",
        "of these, inputs held only NaN and Inf of e4m3",
    ),
    ("order of addition of BF16 and narrower operands", "below what distances tell"),
    (
        "trn3",
        "the vendor's guide prints 72 elements of MX matmuls: 71 are its FP32 golden"
        " rounded to BF16, one is 0.73 BF16 ULP off",
    ),
)
