"""What is known of ScalarE's functions, one by one: a section of docs/exactness.md.

The tables say how far each function may err; here stands where that size comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from neuronjax.numerics.scalar_engine import OF_PROGRAMS
from neuronjax.numerics.scalar_engine_tables import PiecewiseCubic, tables

TITLE = "ScalarE's functions"
GUESS = "guess"
CHECKED = "checked on silicon"

# Where the size of a function's error comes from; of all others it is a guess, as are
# all functions on chips other than Trainium2.
SIZES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "exp": (
            CHECKED,
            "arguments of about -4 to 0 and 0 to 4: three attention kernels; 1.2e-6 of"
            " their 2.9e-6 is left",
        ),
        "rsqrt": (
            CHECKED,
            "arguments of 1.7 to 2.4 and 1,770 to 2,450: two kernels, to 0.05 %",
        ),
        "silu": (
            "bounded on silicon",
            "arguments of 2 to 16: a gated layer; half as many segments would show",
        ),
        "sin": (GUESS, "beyond pi the documented cubic"),
    }
)

TEXT = """\
Under `transcendentals="scalar_engine"` the functions that ScalarE has are piecewise
Taylor polynomials of degree 3 about the middles of segments of equal width, a power of
two of them to an octave of |x|, evaluated in FP32 by Horner's rule, every product and
sum rounded. In kernels that holds for every function in the table below, in programs
for those that one instruction computes; `sine`, `cosine`, `log_plus_one` and others
that the compiler makes of several stay as under `"exact"`. Special values are those of
`"exact"`. Where a function is below 2^-110, products are lost below 2^-126, and
accuracy with them.

The evidence is one author's kernels on Trainium2: relative L2 distances of results from
FP32 NumPy. `test_scalar_engine_silicon.py` draws the same inputs.

- RMSNorm, then a matmul: 1.4635e-5. A matmul, then RMSNorm: 1.4799e-5. Cubics about the
  middles of four segments to an octave make 1.4628e-5 and 1.4807e-5. Nothing else in
  the kernels is near: epsilon, were it dropped, is 2.5e-6 in one and nothing in the
  other, sums in any order err by 1e-6 at most. Of 360 other arrangements (degrees 1 to
  3, 1 to 256 segments to an octave or two, expanded in the middle, at an end, or near
  minimax) one comes within 1 %, five near-minimax cubics to two octaves; the others are
  5 % off or more, arguments or results cut to 13 to 17 bits 7 %. A square of ScalarE
  that is 3e-5 too large or small would do it too.
- Softmax attention in three forms: 2.874e-6, 5.422e-6, 5.448e-6. BF16 products of the
  scores make 4.59e-6 of the last two, segments a quarter wide 2.62e-6, 2.63e-6 and
  2.68e-6. 1.18e-6 to 1.20e-6 is left in each; this emulator's other errors in the first
  are 7.6e-7. Segments of half or twice the width, and a range reduced to halves or
  quarters of ln 2, do not fit; thirds leave 2.1e-6.
- A gated layer with `silu`: 6.36e-7 in all. Two segments to an octave would add 1.0e-6.
- The documented `sin(9.0)` of about 27.65 is the cubic about pi.
- US patent 10,740,432 describes the circuit: a table of base values and Taylor
  coefficients, a subtraction, products and sums.

For making it the default of chips: with it these kernels' errors, 34 and 4 times those
of `"exact"`, are predicted, and by one mechanism. Against it: the sizes of the other
functions' errors are guesses, and so are all on chips other than Trainium2; the order
of the rounding steps, and so every bit inside a segment, is ours; what compilers make
of functions that ScalarE lacks is not known. The default is `"exact"`. Whether a
program cares, `nj.compare` and `nj.study` say: [find the first
divergence](how-to/divergence.md#does-the-precision-of-scalare-matter).
"""


def section() -> Iterator[tuple[str, ...]]:
    """The rows of the table: function, segments, error, where its size comes from."""
    for name, table in sorted(tables().items()):
        label, where = SIZES.get(name, (GUESS, ""))
        yield (name, _segments(table), f"{table.error:.1e}", label, where, _op(name))


def _segments(table: PiecewiseCubic) -> str:
    """How many to an octave: the fewest and the most."""
    counts = sorted({1 << octave.bits for octave in table.octaves})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _op(name: str) -> str:
    return next((op for op, own in OF_PROGRAMS.items() if own == name), "")


HEADS = (
    "function",
    "segments to an octave",
    "error",
    "size of the error",
    "shown by",
    "in programs",
)
