"""Public measurements of real chips, held against the claims of `exactness.py`.

Third parties ran kernels on trn1 and trn2 and published sums or distances. A row has
the chip's result, the emulator's result, the test that compares them, and the questions
that the measurement leaves open. It confirms a claim or contradicts it. `SILENT` lists
what no row decides.
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
        subject: the subject of the claim, in `exactness.py`.
        verdict: whether the measurement confirms the claim.
        chip: the chip that was measured.
        device: the chip's result. Distances are relative L2, from FP32 NumPy.
        here: the emulator's result for the same kernel.
        source: the repository that published the measurement.
        shown_by: the test or program that compares the two results.
        unexplained: the questions that the measurement leaves open.
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
        device="16,384 sums of 128 FP32 numbers, and as many of 127, equal the"
        " sequential FP32 sum, in two runs and on both cores",
        here="the same bits for every sum",
        source=_GRADER,
        shown_by=_SUMS,
        unexplained="only positive numbers on trn1 were measured; we assume that trn2"
        " and trn3 add in the same way",
    ),
    Evidence(
        subject="FP32 arithmetic",
        verdict="confirmed",
        chip="trn1",
        device="65,536 sums of two FP32 numbers equal NumPy's, for each of four seeds",
        here="the same bits",
        source=_GRADER,
        shown_by=_SUMS,
        unexplained="other operators and special values were not measured",
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
        here="4.476e-6",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="bits are not published; with truncated instead of rounded halves,"
        " the distance would be six times as large",
    ),
    Evidence(
        subject="products in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="swiglu_v2_only_down, as above: 4.476e-6",
        here="4.476e-6",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="the distance is too coarse to show the order of addition",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="A.T @ A of linspace(-1, 1, 512 x 512) in K tiles of 64 rows, and in"
        " tiles of 128: the largest difference of the two results is 6.1035e-5",
        here="6.1035e-5; with one sum of all rows (fp32_4pass), 1.83e-4",
        source="a public test that we know only from a report, which does not state"
        " where the test is",
        shown_by=_MODELS,
        unexplained="bits are not published; the next row names other models that fit",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="bmm_v1, K = 64: 1.8e-7",
        here="1.85e-7, of which NumPy's own error is 1.44e-7 (in quadrature); with one"
        " sum of all rows (fp32_4pass), 2.09e-7",
        source=_KDA,
        shown_by=_MODELS,
        unexplained="five other models also fit the measured FP32 matmuls of trn2, for"
        " example sums of 32 rows without the pass that multiplies the low halves",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn2",
        device="tmm_v1, K = 2048: 3.987e-7; swiglu_v1, K = 1024 and 3072: 6.36e-7",
        here="tmm_v1: 4.08e-7; swiglu_v1: 6.43e-7",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="most of each distance is NumPy's own error, which depends on the"
        " processor; the processor of the measurement is not known. With NumPy's orders"
        " of addition on three kinds of processors, our distances are 0.91 to 1.04"
        " times the measured ones (fp32_models.py)",
    ),
    Evidence(
        subject="elementary functions",
        verdict="contradicted",
        chip="trn2",
        device="gqa_full_v2_twophase, softmax attention: 2.874e-6",
        here="6.5e-7",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="ScalarE's exp is less accurate than ours, and its tables are not"
        " published; in this kernel and in v5, v6 and v8 of gqa_full, the chip has an"
        " additional error of 2.8e-6 to 2.9e-6 (in quadrature)",
    ),
    Evidence(
        subject="elementary functions",
        verdict="contradicted",
        chip="trn2",
        device="matmul_add_rmsnorm_v2_bf16_split: 1.545e-5",
        here="4.45e-6",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="either ScalarE's rsqrt or its x^2 is less accurate than ours; the"
        " chip's additional error is 1.48e-5 (in quadrature)",
    ),
    Evidence(
        subject="functions of ScalarE as its tables compute them",
        verdict="confirmed",
        chip="trn2",
        device="add_rmsnorm_matmul_v1: 1.4635e-5; matmul_add_rmsnorm_v2_bf16_split:"
        " 1.545e-5",
        here='with transcendentals="scalar_engine": 1.462e-5; 1.544e-5',
        source=_KDA,
        shown_by=_ROWS,
        unexplained="whether the error is rsqrt's; an error of 3e-5 in x^2 would also"
        " explain both distances",
    ),
    Evidence(
        subject="functions of ScalarE as its tables compute them",
        verdict="confirmed",
        chip="trn2",
        device="the attention kernels gqa_full_v2_twophase, v5, v6 and v8: 2.874e-6,"
        " 5.422e-6, 5.448e-6 and 7.009e-6",
        here='with transcendentals="scalar_engine": 2.695e-6, 5.332e-6, 5.372e-6 and'
        " 6.949e-6",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="what causes the rest of each distance, 0.9e-6 to 1.0e-6 (in"
        " quadrature); the bits of results; all functions except rsqrt and exp",
    ),
    Evidence(
        subject="elementary functions",
        verdict="confirmed",
        chip="trn2",
        device="swiglu_v1, whose silu ScalarE computes: 6.36e-7",
        here="6.43e-7",
        source=_KDA,
        shown_by=_ROWS,
        unexplained="silu's error is hidden by the error of the matmuls, which is 3e-7"
        " in neuronjax",
    ),
    Evidence(
        subject="casts to nearest even",
        verdict="confirmed",
        chip="trn1",
        device="e4m3: the chip reads 0x78 to 0x7E and 0xF8 to 0xFE as Inf or NaN, and"
        " all other codes as the host reads float8_e4m3fn; the largest number is 240",
        here="our float8_e4m3 reads all codes as the chip does",
        source=_KILN,
        shown_by=_FORMATS,
        unexplained="which codes are Inf; what a cast makes of numbers above 240",
    ),
    Evidence(
        subject="casts to nearest even",
        verdict="contradicted",
        chip="trn1",
        device="FP32 cast to BF16 and back: the compiler removes both casts, so nothing"
        " is rounded",
        here='rounded; not rounded with round_trips="folded"',
        source=_KILN,
        shown_by=_ELEMENTWISE,
        unexplained="which ops may be between the two casts",
    ),
    Evidence(
        subject="integers, comparison, selection",
        verdict="contradicted",
        chip="trn1",
        device="int64: (6284 * r) // 6284 is r - 1 for r = 1 to 4 and 6 to 8; division"
        " by 4768 and by powers of two is exact",
        here='the exact quotient, r; with integer_division="reciprocal", the chip\'s'
        " results for these r",
        source=_KILN,
        shown_by=_ELEMENTWISE,
        unexplained="other widths, non-constant divisors, and remainders",
    ),
    Evidence(
        subject="movement, gather, sort, top-k, control flow",
        verdict="confirmed",
        chip="trn1",
        device="a transpose by an identity matrix on TensorE is exact to the bit",
        here="exact to the bit",
        source=_KILN,
        shown_by="tests/nki/test_matmul_kernels.py",
        unexplained="which dtypes were measured",
    ),
    Evidence(
        subject="FP32 operands in TensorE",
        verdict="confirmed",
        chip="trn1",
        device="FP32 matmuls are exact to 1.6e-7",
        here="1.2e-7 from float64, for K of 64 and 128",
        source=_KILN,
        shown_by=_SUMS,
        unexplained="which K and which norm were used",
    ),
    Evidence(
        subject="functions of ScalarE as its tables compute them",
        verdict="confirmed",
        chip="trn1",
        device="for arguments of -85 to 85, exp has a relative error of at most 1.5e-5,"
        " and a median error of 1.5e-6",
        here="for arguments of -76 to 85, at most 1.2e-5, with a median of 6e-7",
        source=_KILN,
        shown_by=_TABLES,
        unexplained="why the median error is larger than here",
    ),
    Evidence(
        subject="functions of ScalarE as its tables compute them",
        verdict="contradicted",
        chip="trn1",
        device="for arguments of -85 to -76 too, exp's relative error is at most"
        " 1.5e-5",
        here="relative errors of up to 9 % (at -85), because products below 2^-126 are"
        " lost",
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
        unexplained="the exact threshold, subnormal operands, and engines other than"
        " ScalarE",
    ),
)

#: What no public row decides -> the reason.
SILENT: tuple[tuple[str, str], ...] = (
    (
        "sums of more than 128 numbers on VectorE",
        "RMSNorm adds 2,048 squares, but the larger error of rsqrt or x^2 hides the"
        ' order; tiles of 512 and one left fold (`accumulation="sequential"`) are both'
        " possible",
    ),
    (
        "reciprocal and divide of VectorE",
        "only attention kernels use them, and exp's error hides theirs",
    ),
    (
        "bn_stats, tensor_tensor_scan",
        "Mamba's scan is within the limit of 3e-5 that its author set; no figure is"
        " published",
    ),
    (
        "casts on write to FP16, FP8 and integers",
        "no measured kernel has such a cast; casts to BF16 and the reading of e4m3"
        " codes are confirmed",
    ),
    ("GpSimdE", "no row uses an instruction of this engine"),
    (
        "subnormal operands, NaNs, infinities, signed zeros",
        "of these, the measured inputs contain only NaN and Inf of e4m3",
    ),
    (
        "order of addition of BF16 and narrower operands",
        "published distances are too coarse to show it",
    ),
    (
        "trn3",
        "the only published values are 72 elements of MX matmuls in AWS's guide; 71 of"
        " them are the guide's FP32 reference values rounded to BF16, and one is 0.73"
        " BF16 ULP from its unrounded reference value",
    ),
)
