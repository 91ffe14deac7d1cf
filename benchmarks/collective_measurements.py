"""Published times of collectives, as data, for `validate_collectives.py`.

Numbers as in their source. nccom-test's samples name neither the instance nor the
software: both are assumed here, and said. Two formats of it exist: whole microseconds,
which contain some 50 to 150 us of every execution, and (SDK 2.31) fractions, which do
not.
"""

from __future__ import annotations

import dataclasses

KIB, MIB = 2**10, 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measured time.

    Attributes:
        size_bytes: of the collective, as nccom-test counts it.
        seconds: measured.
        fits: the constant that was chosen to meet it, or "".
    """

    size_bytes: int
    seconds: float
    fits: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """Times of one collective by size.

    Attributes:
        key: of the data set in the list of published measurements.
        op: the collective.
        ranks: how many, from device 0.
        pairs: of a collective_permute.
        dtype: of the elements.
        target: the machine.
        assumed: what the source does not say.
        source: where it is published.
        rows: the times.
        overhead_from: the row whose error is added to all predictions, or None: the
            old format contains the execution, which the model of collectives does not.
    """

    key: str
    op: str
    ranks: int
    dtype: str
    target: str
    assumed: str
    source: str
    rows: tuple[Row, ...]
    pairs: tuple[tuple[int, int], ...] = ()
    overhead_from: int | None = None


def _rows(sizes: str, times_us: str, fits: dict[str, str] | None = None) -> tuple:
    named = fits or {}
    found = []
    for size, time in zip(sizes.split(), times_us.split(), strict=True):
        number = int(size[:-1]) * {"K": KIB, "M": MIB, "G": 2**30}[size[-1]]
        seconds = float(time) * 1e-6
        found.append(Row(size_bytes=number, seconds=seconds, fits=named.get(size, "")))
    return tuple(found)


_NCCOM = "nccom-test.rst of the Neuron SDK documentation"
_TRN1 = "instance not stated; trn1.32xlarge assumed"
_OLD = f"{_TRN1}; old format, SDK not stated"
_SIZES = (
    "1K 2K 4K 8K 16K 32K 64K 128K 256K 512K 1M 2M 4M 8M 16M 32M 64M 128M 256M 512M "
    "1G 2G"
)
_T16 = "a third party's, SDK 2.32"
_T12 = "a third party's nccom-test plots, field misnamed bus_bw_gbps"

SERIES: tuple[Series, ...] = (
    Series(
        key="T1",
        op="all_reduce",
        ranks=2,
        dtype="uint8",
        target="trn1.32xlarge",
        assumed=_OLD,
        source=_NCCOM,
        rows=_rows("32M", "768"),
    ),
    Series(
        key="T2",
        op="all_reduce",
        ranks=2,
        dtype="float32",
        target="trn1.32xlarge",
        assumed=f"{_OLD}; one execution's overhead from the first row",
        source=_NCCOM,
        rows=_rows(
            "1K 4K 16K 64K 256K 1M 4M 16M 64M 256M 1G",
            "58 58 58 58 60 68 107 332 1214 4750 18930",
            {"1K": "overhead", "16M": "CHANNEL_SHARE", "1G": "CHANNEL_SHARE"},
        ),
        overhead_from=0,
    ),
    Series(
        key="T3",
        op="all_gather",
        ranks=32,
        dtype="float32",
        target="trn1.32xlarge",
        assumed=f"{_OLD}; one execution's overhead from the first row",
        source=_NCCOM,
        rows=_rows("1K 8K 64K 512K", "151 149 150 179", {"1K": "overhead"}),
        overhead_from=0,
    ),
    Series(
        key="T4",
        op="all_gather",
        ranks=32,
        dtype="float32",
        target="trn1.32xlarge",
        assumed=f"{_TRN1}; new format, SDK 2.31 or later",
        source=_NCCOM,
        rows=_rows("1K 8K 64K 512K", "6.16 6.48 8.17 23.16")
        + _rows("1K 8K 64K 512K", "6.19 6.55 8.18 23.11"),
    ),
    Series(
        key="T6",
        op="collective_permute",
        ranks=8,
        dtype="uint8",
        target="trn1.32xlarge",
        assumed=f"{_TRN1}; SDK not stated",
        source=_NCCOM,
        rows=_rows("32M", "894.24"),
        pairs=((0, 1), (1, 0), (2, 3), (3, 2), (4, 4), (5, 5), (6, 6), (7, 7)),
    ),
    Series(
        key="T16 32 MiB",
        op="all_reduce",
        ranks=32,
        dtype="bfloat16",
        target="trn1.32xlarge",
        assumed="32 ranks; measured with the barrier switched off",
        source=_T16,
        rows=_rows("32M", "2270"),
    ),
    Series(
        key="T16 32 MiB",
        op="all_gather",
        ranks=32,
        dtype="bfloat16",
        target="trn1.32xlarge",
        assumed="32 ranks; 1.58 ms less 0.55 ms of copies",
        source=_T16,
        rows=_rows("32M", "1030"),
    ),
    Series(
        key="T8",
        op="all_gather",
        ranks=4,
        dtype="float16",
        target="trn2.48xlarge",
        assumed="all_gather_v, priced as all_gather; one chip of trn2, as it requires",
        source=_NCCOM,
        rows=_rows("2K", "16.28"),
    ),
    Series(
        key="T12",
        op="all_reduce",
        ranks=2,
        dtype="float32",
        target="trn1.32xlarge",
        assumed=f"{_TRN1}; dtype and SDK not stated",
        source=_T12,
        rows=_rows(
            _SIZES,
            "2.1 2.1 2.1 2.1 2.1 2.7 3.5 5.2 7.1 11.0 18.7 34.5 66.0 131.3 296.1 585.0 "
            "1168.9 2339.3 4698.5 9483.9 18995.9 37950.3",
            {"1K": "CHIP_START"},
        ),
    ),
    Series(
        key="T12",
        op="all_reduce",
        ranks=8,
        dtype="float32",
        target="trn1.32xlarge",
        assumed=f"{_TRN1}; dtype and SDK not stated",
        source=_T12,
        rows=_rows(
            _SIZES,
            "6.3 6.4 6.8 7.1 7.5 9.0 11.6 16.6 23.6 39.1 70.3 86.8 133.5 243.3 466.4 "
            "892.7 1759.1 3507.1 7007.5 14014.4 28019.1 56035.3",
            {
                "1K": "LINK_START",
                "512K": "LINK_SHARE",
                "1M": "LINK_SHARE",
            },
        ),
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """The time of one execution with so many all-reduces of 32 KiB in BF16.

    Attributes:
        target: the machine.
        ranks: of every group.
        all_reduces: one after the other.
        seconds: measured.
        fits: whether constants of the barrier were chosen to meet it.
        hardware_barrier: whether the barrier on the device was switched on.
    """

    target: str
    ranks: int
    all_reduces: int
    seconds: float
    fits: bool = False
    hardware_barrier: bool = False


def _executions(
    target: str, ranks: str, count: int, times_ms: str, fits: bool
) -> tuple[Execution, ...]:
    return tuple(
        Execution(
            target=target,
            ranks=int(n),
            all_reduces=count,
            seconds=float(time) * 1e-3,
            fits=fits,
        )
        for n, time in zip(ranks.split(), times_ms.split(), strict=True)
    )


_RANKS = "2 4 8 16 32 64"

#: T16: a third party's, SDK 2.32, LNC 2; launches chained, without the host's part.
EXECUTIONS: tuple[Execution, ...] = (
    *_executions(
        "trn2.48xlarge", _RANKS, 0, "0.086 0.154 0.086 0.145 0.132 0.108", True
    ),
    *_executions(
        "trn2.48xlarge", _RANKS, 1, "0.150 1.040 1.486 1.982 2.541 2.973", True
    ),
    *_executions(
        "trn2.48xlarge", _RANKS, 12, "0.325 1.023 1.484 2.030 2.515 3.214", False
    ),
    # Groups of 8 at the same time on 16, 32 and 64 devices.
    *_executions("trn2.48xlarge", "8 8 8", 1, "1.559 1.334 1.419", False),
    # Groups of 2 at the same time on 4 and on 64 devices.
    *_executions("trn2.48xlarge", "2 2", 1, "0.213 0.161", False),
    *_executions("trn1.32xlarge", "8 16 32", 1, "2.45 3.76 5.10", True),
    *_executions("trn1.32xlarge", "8 16 32", 12, "1.75 3.87 5.02", False),
    Execution(
        target="trn1.32xlarge",
        ranks=32,
        all_reduces=1,
        seconds=2.80e-3,
        fits=True,
        hardware_barrier=True,
    ),
)
