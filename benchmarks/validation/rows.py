"""Published times of whole programs, as data: hardware sheet sections 9.1 to 9.5.

Seconds of one logical NeuronCore. Single instructions and transfers are in
`micro_rows`, collectives in `benchmarks.collective_measurements`. A row says what was
measured and names the program that `programs` writes for it; nothing is computed here.

A third of the rows, chosen by a hash of their names, is **held out**: no rule or
constant of the model may be chosen with them in view. One workload has several times as
its kernel was tuned; the model predicts the best, and the others are shown as variants.
Sources, besides those of `timing/assumptions.py`: QoR, the baselines in nki-library's
integration tests at d2ad3a5 (times in picoseconds there); SAM, the thresholds in
nki-samples' tests; MAM, the tutorial of the fused Mamba kernel; LN, that of LayerNorm
at v2.26.1; MM, that of matrix multiplication at v2.26.1; NRT, nrtpy's benchmark
tutorial.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

#: best: the best time of its workload; variant: a time of a workload that has a better
#: one; bound: an upper bound in a test, or a target; suspicious: a figure that looks
#: entered by hand (the same for different programs, or round), or an illustration.
Kind = Literal["best", "variant", "bound", "suspicious"]

US, MS = 1e-6, 1e-3
HELD_OUT_ONE_IN = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One published time.

    Attributes:
        name: what was measured; unique.
        workload: the class that medians are taken of.
        chip: on which.
        lnc: physical cores of the logical core.
        seconds: published.
        kind: what the figure is.
        section: of the hardware sheet.
        source: page, picture or test.
        program: name of the function in `programs` that writes it.
        arguments: of that function.
    """

    name: str
    workload: str
    chip: str
    lnc: int
    seconds: float
    kind: Kind
    section: str
    source: str
    program: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_held_out(self) -> bool:
        """Whether no tuning may look at it."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return digest[0] % HELD_OUT_ONE_IN == 0


def _row(
    name: str,
    workload: str,
    chip: str,
    lnc: int,
    seconds: float,
    kind: Kind,
    section: str,
    source: str,
    program: str,
    **arguments: Any,
) -> Row:
    return Row(
        name=name,
        workload=workload,
        chip=chip,
        lnc=lnc,
        seconds=seconds,
        kind=kind,
        section=section,
        source=source,
        program=program,
        arguments=MappingProxyType(arguments),
    )


# -- 9.1, 9.3: whole kernels -----------------------------------------------------------

_FP32 = {"m": 4096, "k": 8192, "n": 8192, "dtype": "float32"}
_BF16 = {"m": 4096, "k": 8192, "n": 8192, "dtype": "bfloat16"}


def _fp32_matmul(variant: str, ms: float, kind: Kind) -> Row:
    name = f"FP32 matmul 4096x8192x8192, {variant}"
    return _row(
        name, "matmul", "trn2", 1, ms * MS, kind, "9.1", "KO", "matmul", **_FP32
    )


def _bf16_matmul(variant: str, ms: float, kind: Kind) -> Row:
    name = f"BF16 matmul 4096x8192x8192, {variant}"
    return _row(
        name, "matmul", "trn1", 1, ms * MS, kind, "9.3", "MM", "matmul", **_BF16
    )


def _quantized_norm(rows: int, hidden: int, us: float, *, norm: bool = True) -> Row:
    """Measured, as the kernel's regression test has it."""
    return _row(
        f"{'RMSNorm + ' if norm else ''}FP8 S{rows} H{hidden}",
        "rmsnorm fp8",
        "trn2",
        2,
        us * US,
        "best",
        "9.4",
        "QoR: core/rmsnorm/test_rmsnorm_quant.py",
        "rmsnorm_fp8",
        rows=rows,
        hidden=hidden,
        norm=norm,
    )


def _quantized_norm_target(rows: int, hidden: int, us: float) -> Row:
    """The page's "performance targets"; what was measured at S2048 H16384 is 79 % of
    its target."""
    return _row(
        f"RMSNorm + FP8 S{rows} H{hidden}, target",
        "rmsnorm fp8",
        "trn2",
        2,
        us * US,
        "bound",
        "9.1",
        "RMQ",
        "rmsnorm_fp8",
        rows=rows,
        hidden=hidden,
        norm=True,
    )


def _layernorm(variant: str, us: float, kind: Kind) -> Row:
    # The page says (300, 1000), for which 2 ms are 200 times too long; the command
    # whose output it prints takes 4096 x 8192 where it is told nothing else.
    name = f"LayerNorm FP32 4096x8192, {variant}"
    shape = {"rows": 4096, "hidden": 8192}
    return _row(
        name, "layernorm", "trn1", 1, us * US, kind, "9.3", "LN", "layernorm", **shape
    )


def _mamba(channels: int, variant: str, us: float, kind: Kind) -> Row:
    return _row(
        f"Mamba B1 S512 C{channels} state 16, {variant}",
        "mamba",
        "trn1",
        1,
        us * US,
        kind,
        "9.3",
        "MAM",
        "mamba",
        sequence=512,
        channels=channels,
        states=16,
    )


_KERNELS = (
    _fp32_matmul("v2 tiled", 39.89, "variant"),
    _fp32_matmul("v3 loads hoisted", 28.20, "best"),
    _fp32_matmul("v4 blocked M, N", 28.41, "variant"),
    _fp32_matmul("v5 blocked M, N, K", 28.30, "variant"),
    _row(
        "FP32 MLP 2048x2048, 2048-1024-1024",
        "mlp fp32",
        "trn2",
        1,
        1.87 * MS,
        "best",
        "9.1",
        "nki-profiler pictures",
        "mlp_fp32",
        rows=2048,
        widths=(2048, 2048, 1024, 1024),
    ),
    _quantized_norm(160, 16384, 106.547),
    _quantized_norm(2048, 16384, 683.281),
    _quantized_norm(160, 16384, 68.355, norm=False),
    _quantized_norm_target(2048, 8192, 458.2),
    _quantized_norm_target(32768, 8192, 6287),
    _quantized_norm_target(2048, 16384, 866.81),
    _quantized_norm_target(32768, 16384, 13214.4),
    _row(
        "add FP16 4x3",
        "add",
        "trn2",
        1,
        3.2 * US,
        "suspicious",
        "9.1",
        "NRT, illustrative",
        "add",
        shape=(4, 3),
        dtype="float16",
    ),
    _bf16_matmul("tiled", 51.80, "variant"),
    _bf16_matmul("hoisted", 42.96, "variant"),
    _bf16_matmul("block free dimensions", 22.07, "variant"),
    _bf16_matmul("block all", 6.97, "best"),
    _layernorm("v1", 2311, "variant"),
    _layernorm("v2", 1969, "best"),
    _mamba(256, "PyTorch", 151830, "variant"),
    _mamba(256, "NKI v1", 172.93, "best"),
    _mamba(4096, "NKI v1", 2340, "variant"),
    _mamba(4096, "NKI v2", 1610, "best"),
)

#: Rows of the sheet that no program can be written for, and why.
UNEXPRESSED: Mapping[str, str] = MappingProxyType(
    {
        "9.1 FP32 MLP, LNC 2, 2.0699 ms": "its shapes are not published, and its MFU of"
        " 37 % is more than FP32 can have",
        "9.1 Explorer sample totals": "neither chip nor shapes are published",
        "9.4 nki-samples flash attention, 4.0e9 and others": "the unit is a guess and"
        " the thresholds never trip",
        "QoR RMSNorm + FP8 of 2 rows, 51.6 to 93.9 us": "the kernel gives a row to one"
        " lane and leaves 127 empty; nothing says that a program is laid out so",
    }
)

# -- 9.4: nki-library's baselines ------------------------------------------------------

# Keys and values, queries, d, dtype, causal, batch, microseconds. LNC 1.
_ATTENTION: tuple[tuple[int, int, int, str, bool, int, float], ...] = (
    (9216, 4096, 64, "float32", False, 1, 580),
    (4096, 9216, 64, "float32", False, 1, 567),
    (9216, 9216, 64, "float32", False, 1, 1250),
    (9216, 9216, 64, "bfloat16", False, 1, 1250),
    (16384, 16384, 64, "float16", True, 1, 1960),
    (9216, 9216, 64, "bfloat16", True, 1, 694),
    (16384, 16384, 128, "float16", True, 1, 2030),
    (16400, 16400, 128, "float16", True, 1, 2070),
    (16384, 2048, 128, "float32", False, 1, 520),
    (16384, 4096, 128, "bfloat16", False, 1, 981),
    (16384, 8192, 128, "float32", False, 1, 1960),
    (32768, 4096, 128, "bfloat16", False, 1, 1880),
    (16384, 16384, 8, "float32", True, 1, 1880),
    (2048, 2048, 128, "float16", True, 3, 209),
)

# LNC, batch, rows, hidden, intermediate, options, microseconds. Options: rms or ln
# before it, fa adds a residual first, sa stores that sum, b biases.
_PREFILL = """
2 1  128  8192 896 ln         238.0
1 1  512  1024 448 rms+fa      80.5
2 1  512  1024 448 rms+fa      82.8
2 1 1024  1024 448 rms+fa      92.2
2 1 1024  1024 448 fa          88.0
2 1 1024  1024 448 rms         92.0
2 1 1024  1024 448 -           90.0
1 1  768  1024 896 rms+fa     140.5
2 1  768  1024 896 rms+fa     107.7
1 1 8192  8192 448 rms+fa    4296.9
2 1 8192  8192 448 rms+fa    2520.7
2 1 1024 16384 832 -          756.5
2 1 1024 16384 832 rms        895.3
1 1 1024 16384 416 -          882.1
1 1 1024 16384 416 rms       1176.3
2 1 1024  8192 448 -          278.0
1 1 8192  8192 448 rms+fa+sa 4780.4
1 1 8192  8192 448 fa+sa     3784.8
1 1 1024 16384 416 fa+sa     1000.0
1 1 1024 16384 416 rms+fa+sa 1246.3
2 1 8192  8192 448 rms+fa+sa 2737.2
2 1 8192  8192 448 fa+sa     2127.1
2 1 1024 16384 416 fa+sa      595.0
2 1 1024 16384 416 rms+fa+sa  755.9
2 2 8192  8192 448 rms+fa+sa 5298.1
2 4 8192  8192 448 fa+sa     8376.7
2 2 1024 16384 416 fa+sa     1111.0
"""

_DECODE = """
1 1 1  8192 448 rms+fa+sa  76.5
1 1 1  7168 896 rms+fa+sa 112.2
1 1 1 16384 416 -         118.4
1 1 1 16384 832 -         224.5
1 3 8  8192 832 ln        124.9
1 4 2 16384 832 rms       229.1
1 4 2 16384 832 rms+b     242.5
"""

#: Figures that the sheet calls entered by hand: round, or the same for several shapes.
#: 80.5 stands for rms and rms+fa, 82.8 for no norm and rms+fa (test_mlp_cte.py).
BY_HAND = frozenset({258.0, 238.0, 210.3, 92.0, 278.0, 1111.0, 1000.0, 80.5, 82.8})


def _attention_name(row: tuple[int, int, int, str, bool, int, float]) -> str:
    keys, queries, d, dtype, causal, batch, _ = row
    mask = "causal" if causal else "full"
    many = f"{batch} x " if batch > 1 else ""
    return f"attention {many}{keys}x{queries} d{d} {dtype} {mask}"


def _attention(row: tuple[int, int, int, str, bool, int, float]) -> Row:
    keys, queries, d, dtype, causal, batch, us = row
    return _row(
        _attention_name(row),
        "attention",
        "trn2",
        1,
        us * US,
        "best",
        "9.4",
        "QoR",
        "attention",
        keys=keys,
        queries=queries,
        d=d,
        dtype=dtype,
        causal=causal,
        batch=batch,
    )


def _mlps(workload: str, text: str) -> tuple[Row, ...]:
    return tuple(_mlp(workload, line.split()) for line in text.strip().splitlines())


def _mlp(workload: str, fields: list[str]) -> Row:
    lnc, batch, rows, hidden, width = map(int, fields[:5])
    options, us = fields[5], float(fields[6])
    shape = f"B{batch} S{rows} H{hidden} I{width}"
    return _row(
        f"{workload} LNC{lnc} {shape} {options}",
        workload,
        "trn2",
        lnc,
        us * US,
        "suspicious" if us in BY_HAND else "best",
        "9.4",
        "QoR",
        "mlp",
        rows=batch * rows,
        hidden=hidden,
        width=width,
        options=tuple(o for o in options.split("+") if o != "-"),
    )


_BASELINES = (
    *map(_attention, _ATTENTION),
    *_mlps("mlp prefill", _PREFILL),
    *_mlps("mlp decode", _DECODE),
)

# -- 9.5: bounds -----------------------------------------------------------------------


def _bound(name: str, us: float, program: str, chip: str = "trn2", **a: Any) -> Row:
    """The chip is unstated, but for the double-row matmul; trn2 stands for it."""
    return _row(name, "bounds", chip, 1, us * US, "bound", "9.5", "SAM", program, **a)


def _sd_attention(kernel: str, n: int, d: int, dtype: str, us: float) -> Row:
    shape = {"keys": n, "queries": n, "d": d, "dtype": dtype}
    name = f"SD attention{kernel} {n} d{d} {dtype}"
    return _bound(name, us, "attention", causal=False, batch=1, **shape)


def _norm_qkv(rows: int, hidden: int, out: int, dtype: str, us: float) -> Row:
    name = f"RMSNorm QKV {rows}x{hidden}x{out} {dtype}"
    shape = {"rows": rows, "hidden": hidden, "width": out, "dtype": dtype}
    return _bound(name, us, "rmsnorm_qkv", **shape)


def _resize(batch: int, dtype: str, us: float) -> Row:
    name = f"resize_nearest {batch}x30x20x1280 to 59x38 {dtype}"
    return _bound(
        name,
        us,
        "resize_nearest",
        shape=(batch, 30, 20, 1280),
        size=(59, 38),
        dtype=dtype,
    )


def _average_pool(
    batch: int, channels: int, side: int, out: int, dtype: str, us: float
) -> Row:
    """The test allows 5 % more than it names."""
    return _bound(
        f"adaptive_avg_pool2d {batch}x{channels}x{side}x{side} to {out} {dtype}",
        us * 1.05,
        "adaptive_average_pool",
        shape=(batch, channels, side, side),
        size=out,
        dtype=dtype,
    )


_BOUNDS = (
    _sd_attention("", 4096, 128, "float32", 675),
    _sd_attention("", 4096, 128, "bfloat16", 536),
    _sd_attention("", 4096, 64, "float16", 600),
    _sd_attention(" allocated", 4096, 128, "float32", 410),
    _sd_attention(" allocated", 4096, 128, "bfloat16", 380),
    _sd_attention(" allocated", 5120, 128, "bfloat16", 586),
    _norm_qkv(128, 512, 512, "float16", 25),
    _norm_qkv(512, 1024, 384, "bfloat16", 40),
    _norm_qkv(128, 1024, 512, "bfloat16", 28),
    _bound(
        "double-row FP8 matmul 512x16384x1024",
        320,
        "fp8_matmul",
        m=512,
        k=16384,
        n=1024,
    ),
    _bound(
        "flash attention backward 4 heads 32K d128",
        117000,
        "attention_backward",
        heads=4,
        length=32768,
        d=128,
        dtype="bfloat16",
    ),
    _resize(10, "float32", 1740),
    _resize(1, "float16", 659),
    _average_pool(1, 64, 56, 7, "float32", 65),
    _average_pool(2, 128, 28, 7, "float32", 109),
    _average_pool(1, 256, 14, 7, "float16", 88),
    _average_pool(4, 64, 56, 7, "float32", 152),
    _average_pool(2, 128, 28, 14, "float32", 327),
    _average_pool(1, 512, 7, 1, "float32", 14),
    _average_pool(8, 64, 32, 4, "float16", 103),
    _average_pool(2, 2048, 32, 3, "float32", 564),
    _average_pool(2, 64, 256, 1, "float32", 255),
    _bound(
        "select_and_scatter 8x64x112x112 to 56",
        4500,
        "select_and_scatter",
        shape=(8, 64, 112, 112),
        dtype="float32",
    ),
)

PAGES: tuple[Row, ...] = (*_KERNELS, *_BASELINES, *_BOUNDS)
"""Rows of the hardware sheet; `library_rows` has more baselines of the library."""
