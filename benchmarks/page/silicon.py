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


_SCALAR_ENGINE = """With `transcendentals="scalar_engine"`, piecewise cubics from tables
as ScalarE has them, {close} of {count} are within 10 %:"""
_DEFAULT = "With the default functions {close} of {count} are within 10 %:"


_NUMERICS = """The table compares relative L2 distances from NKIBench's FP32 NumPy
reference on the same inputs: those of a trn2, as published, and those of the emulator.
Both distances include NumPy's own error against float64. It depends on the host,
because BLAS adds in blocks of K whose length depends on the processor. Where NumPy's
error is a tenth of the device's distance or more, the last columns remove it. For the
device, they assume that the two errors are independent; for the emulator, they give the
distance from float64.

Some kernels have a larger distance on the device. They use a function of ScalarE
(exp, rsqrt) whose tables are less accurate than our functions. In quadrature, the
attention kernels have an additional error of 2.8e-6 to 2.9e-6 on the device,
whatever their matmuls are, and the kernels with RMSNorm of 1.48e-5."""


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


_MODELS = """The table tests models of FP32 operands in the array against published
distances of trn2. The name of a model states how it differs from `fp32_4pass`: four
passes of high and low halves of 12 bits, where each pass is an instruction whose FP32
sum goes down 128 rows, and PSUM adds the results. The default, `fp32_4pass_rows32`,
adds 32 rows at a time.

A cell is the predicted distance over the measured one, for NumPy in blocks of {blocks}
rows of K. OpenBLAS uses the first block size on Haswell, Zen and Sapphire Rapids, and
the last on Skylake-X; it is not known which host computed the references. K = 64 is one
block for any of them. The last row does not depend on NumPy: it is the largest distance
of A.T @ A of linspace(-1, 1) as 512 x 512 between K tiles of 64 rows and of 128.

This row and K = 64 exclude one sum of all rows. Sums of 32 rows are within a tenth
of every row, for any block size of NumPy. The other models that fit also add 32
rows, or fit only for some block sizes. It is not known whether BF16 and FP8 operands
are also added by 32 rows: for the three BF16 products, models of sums differ by less
than the uncertainty of the computed parts, which is a percent or two."""


def _predicted(row: Found, device: float) -> str:
    return " / ".join(f"{p / device:.3f}" for p in row["by_block"].values())
