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


_NUMERICS = """Relative L2 distances of results from NKIBench's FP32 NumPy reference on
the same inputs: of a trn2, as published, and of the emulator. NumPy has an error of its
own, from float64, which is in both; it depends on the host, for BLAS adds in blocks of
K whose length is the processor's. Where it is a tenth of the device's distance or more,
the last columns leave it out: of the device, as if the two errors were independent,
and of the emulator, the distance from float64. Kernels whose device is farther off have
a function of ScalarE in them (exp, rsqrt), whose tables are coarser than our functions:
in quadrature the attention kernels of the device are 2.8e-6 to 2.9e-6 farther off than
here, whatever their matmuls are, and those with RMSNorm 1.48e-5."""


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


_MODELS = """What the array may do with FP32 operands, against distances that were
published of trn2. Models differ from `fp32_4pass` in what their names say: four passes
of high and low halves of 12 bits, each pass an instruction whose FP32 sum goes down 128
rows, and whose result PSUM adds; the default, `fp32_4pass_rows32`, adds 32 rows at a
time. In the cells, predicted over measured, for NumPy in
blocks of {blocks} rows of K: OpenBLAS takes the first on Haswell, Zen and Sapphire
Rapids, the last on Skylake-X, and which host computed the references is not known.
K = 64 is one block of any. The last row knows no NumPy: A.T @ A of linspace(-1, 1) as
512 x 512 in K tiles of 64 rows is at most so far from the same in tiles of 128. It and
K = 64 exclude one sum of all rows. Sums of 32 rows are within a tenth of every row, in
whatever blocks NumPy added; what fits as well keeps to 32 rows, or needs some of the
blocks. The three BF16 products tell models of sums apart by less than the parts that
are computed leave to chance, a percent or two, so that whether BF16 and FP8 operands
are added by 32 rows as well is not known."""


def _predicted(row: Found, device: float) -> str:
    return " / ".join(f"{p / device:.3f}" for p in row["by_block"].values())
