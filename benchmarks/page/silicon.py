"""The sections on numerics of chips, each made from one results file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.page import text

Found = Mapping[str, Any]


def numerics(found: Found) -> str:
    """Return every kernel that was run, and those that were not."""
    head = (
        "kernel", "chip", "about", "device", "here", "ratio", "within 10 %",
        "NumPy", "device alone", "here alone",
    )  # fmt: skip
    parts = [_NUMERICS]
    runs = [(_DEFAULT, found)]
    if "scalar_engine" in found:
        runs.append((_SCALAR_ENGINE, found["scalar_engine"]))
    for words, run in runs:
        close = sum(e["is_close"] for e in run["entries"])
        parts.append(words.format(close=close, count=len(run["entries"])))
        table = text.table(head, map(_row, run["entries"]))
        parts.append(text.folded("Every kernel", table, *_not_run(run)))
    return "\n\n".join(parts)


def _not_run(found: Found) -> Iterator[str]:
    if found["not_done"]:
        names = (f"{name} ({why})" for name, why in found["not_done"].items())
        yield f"Not run: {', '.join(names)}."


_SCALAR_ENGINE = """With `transcendentals="scalar_engine"`, functions are piecewise
cubics with tables, as on ScalarE. With these functions, {close} of {count} kernels are
within 10 %:"""
_DEFAULT = "With the default functions, {close} of {count} kernels are within 10 %:"


_NUMERICS = """The table compares relative L2 distances from NKIBench's FP32 NumPy
reference on the same inputs: those of a trn2, as published, and those of the emulator.
Both distances include NumPy's own error against float64. NumPy's error depends on the
host, because BLAS adds in blocks of K whose length depends on the processor. Where
NumPy's error is a tenth of the device's distance or more, the last columns remove it.
For the device, they assume that the two errors are independent; for the emulator, they
give the distance from float64.

Some kernels have a larger distance on the device than in the emulator. They use a
function of ScalarE (exp, and rsqrt or x²) that is less accurate than ours. Two
independent errors add as the root of the sum of their squares (in quadrature). Computed
in this way, the additional error of the device is 2.8e-6 to 2.9e-6 for the attention
kernels, whatever their matmuls are, and 1.48e-5 for the kernels with RMSNorm."""


def _row(entry: Found) -> tuple[str, ...]:
    alone = entry["device_alone"]
    return (
        entry["kernel"].rpartition("/")[2].removesuffix(".py"),
        entry["chip"],
        entry["about"],
        f"{entry['device']:.3e}",
        f"{entry['here']:.3e}",
        "" if entry["ratio"] is None else f"{entry['ratio']:.3f}",
        "yes" if entry["is_close"] else "**no**",
        f"{entry['numpy']:.2e}",
        "" if alone is None else f"{alone:.2e}",
        "" if alone is None else f"{entry['here_alone']:.2e}",
    )


def fp32_models(found: Found) -> str:
    """Return every model of FP32 operands, and the rows that exclude it."""
    device = found["device"]
    head = ("model", *(f"{name}: {d:.3e}" for name, d in device.items()), "")
    rows = (
        (
            e["name"],
            *(_predicted(e["rows"][name], d) for name, d in device.items()),
            e["verdict"],
        )
        for e in found["entries"]
    )
    blocks = ", ".join(map(str, found["blocks"]))
    return "\n\n".join([_MODELS.format(blocks=blocks), text.table(head, rows)])


_MODELS = """The table tests models of a matmul with FP32 operands in TensorE against
published distances of trn2. The model `fp32_4pass` splits each operand into a high and
a low half of 12 bits, and multiplies the halves in four passes. Each pass is an
instruction that makes one FP32 sum down 128 rows, and PSUM adds the four results. The
name of every other model states how it differs from this one. The default,
`fp32_4pass_rows32`, makes a sum of every 32 rows, and adds these sums.

The head of a column gives a measured distance. A cell is the predicted distance divided
by the measured one. It has three values, because the reference is NumPy's result, which
depends on the length of the blocks of K that BLAS adds: {blocks} rows. OpenBLAS uses
the first length on Haswell, Zen and Sapphire Rapids, and the last on Skylake-X; it is
not known which host computed the references. With K = 64 there is one block, whatever
its length. The last measurement does not depend on NumPy. It takes A = linspace(-1, 1)
as 512 x 512, computes A.T @ A once in K tiles of 64 rows and once in K tiles of 128
rows, and gives the largest difference between the two results.

The last measurement and K = 64 exclude one sum of all rows. With sums of 32 rows, every
predicted distance is within a tenth of the measured one, for any block length. The
other models that fit also add 32 rows, or fit only for some block lengths. It is not
known whether BF16 and FP8 operands are also added by 32 rows. The kernels with three
BF16 products do not decide this: our predictions, which are computed on parts of the
inputs, are uncertain by a percent or two, and those of the models differ by less."""


def _predicted(row: Found, device: float) -> str:
    return " / ".join(f"{p / device:.3f}" for p in row["by_block"].values())
