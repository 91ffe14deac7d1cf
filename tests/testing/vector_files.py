"""The files of a set of conformance vectors: arrays by family, and the manifest.

The manifest has the rules that the vectors follow and what each function takes: an
implementation should need nothing but the manifest and the arrays.
`test_conformance_rules.py` reads the published outputs by them alone.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neuronjax.testing.archive import sha256, write_atomically
from neuronjax.testing.conformance import MANIFEST, VERSION, Case

RULES: Mapping[str, str] = {
    "cast/overflow": (
        "overflow `ieee`: a rounded magnitude beyond the largest number becomes Inf; "
        "in a format without Inf, NaN (float8_e4m3fn, float8_e8m0fnu) or the largest "
        "number (float4_e2m1fn). `saturate`: it, and Inf, become the largest number"
    ),
    "cast/rtz": (
        "rtz never overflows: a finite number beyond the largest becomes the largest, "
        "under `ieee` too. Inf is as the overflow says"
    ),
    "cast/half_away": "ties away from zero; else the nearest",
    "cast/nan": (
        "a NaN becomes the quiet NaN without payload, with its sign: the first bit of "
        "the mantissa set, 0x7f | sign in float8_e4m3fn, 0xff in float8_e8m0fnu. "
        "float4_e2m1fn has none: NaN becomes a zero of the other sign, +NaN 0x8 and "
        "-NaN 0x0"
    ),
    "cast/e8m0": (
        "float8_e8m0fnu, the powers of two from 2^-127, has no sign and no zero: zeros "
        "of both signs and negative numbers become NaN, 0xff. Ties go up, for rne too"
    ),
    "cast/zero": "zeros keep their sign, also those that small numbers round to",
    "quantize_mx/scale": (
        "of a block whose largest magnitude is amax, with the float32 exponent field e "
        "and mantissa m: byte = max(e + r, emax) - emax, emax being that of the "
        "largest element (8 in mxfp8_e4m3, 15 in mxfp8_e5m2, 2 in mxfp4_e2m1). "
        "r is by rule: "
        "ocp_floor 0; neuron 1; ceil 1 if m != 0; rceil 1 if m > the mantissa of the "
        "largest element; even 1 if m + 2^(22 - mantissa bits of the element) >= 2^23; "
        "else 0"
    ),
    "quantize_mx/nki_golden": "byte = (e - emax) modulo 256, as uint8 wraps around",
    "quantize_mx/zero": (
        "float32 subnormals read as zeros. A block of zeros has byte 0, and zeros that "
        "keep their signs"
    ),
    "quantize_mx/nan": "a block with NaN or Inf has byte 255, and elements of code 0",
    "quantize_mx/elements": (
        "x / 2^(byte - 127) to nearest, ties to even; what is beyond the largest "
        "element becomes the largest"
    ),
}

#: What each function is, for whoever implements it. Arrays are bit patterns.
FUNCTIONS: Mapping[str, str] = {
    "cast": (
        "x: uint32, float32 patterns; format, rounding (rne, rtz, half_away, "
        "stochastic), overflow (ieee, saturate); random_bits: uint32 of the shape "
        "of x, for stochastic: up where fraction + random carries out of 32 bits. "
        "flush_subnormals says that x holds float32 subnormals, which read as "
        "zeros. -> codes"
    ),
    "quantize_mx": (
        "x: uint32 float32 patterns [rows, n], blocks of 32 along n; format, "
        "scale_rule. -> elements uint8 [rows, n], scales uint8 [rows, ceil(n / 32)] "
        "E8M0"
    ),
    "sparsify": (
        "x: uint16 bfloat16 patterns [K, n]; pattern N:M along K; ties to the lower "
        "index. -> values [K N / M, n], tags uint8 of that shape"
    ),
    "matmul": (
        "lhs [M, K], rhs [K, N]: patterns of `format`; model systolic (K tiles of "
        "128, left fold of fused multiply-adds, tiles added in K order in float32), "
        "fp32_4pass (hi = bits & 0xfffff000; hi.hi, hi.lo, lo.hi, lo.lo added in "
        "PSUM tile by tile), fp32_4pass_rows32 (the same, but a pass over a tile is a "
        "left fold for every 32 rows, and these added in order) or double_row (tiles "
        "of 256, rows k and k + 128 summed first). -> result uint32"
    ),
    "matmul_mx": (
        "lhs, rhs uint8 [M, K], [N, K] element codes; lhs_scales, rhs_scales uint8 "
        "E8M0, blocks of 32; tiles of 512, quads 4p..4p+3 summed first. -> result "
        "uint32 [M, N]"
    ),
    "matmul_sparse": (
        "x: uint16 bfloat16 patterns [M, K]; w: [K, N], of which `pattern` along K "
        "is kept; K tiles of 128 kept rows, rows left out take no part. -> result "
        "uint32 [M, N]"
    ),
    "reduce": (
        "x [ranks, n]: patterns of `format`; stages [[width, hop], ...]: each turns "
        "`width` neighbours into one by a float32 left fold that is rounded to the "
        "format after every `hop` (the first alone is a copy); order [chunks, "
        "ranks]: who meets whom, for chunk c the elements from c ceil(n / chunks) "
        "on. -> result [n]"
    ),
}


def encoded(cases: Iterable[Case]) -> dict[str, bytes]:
    """The files of a set, by name."""
    families: dict[str, dict[str, np.ndarray]] = {}
    described = []
    for case in cases:
        arrays = families.setdefault(case.family, {})
        entry: dict[str, Any] = {
            "family": case.family,
            "name": case.name,
            "function": case.function,
            "parameters": dict(case.parameters),
        }
        for kind in ("inputs", "outputs"):
            held = {n: (_key(a), a) for n, a in getattr(case, kind).items()}
            arrays.update(held.values())
            entry[kind] = {name: key for name, (key, _) in held.items()}
        described.append(entry)
    files = {f"{name}.npz": npz_bytes(arrays) for name, arrays in families.items()}
    manifest = {
        "format": "neuronjax-conformance",
        "version": VERSION,
        "functions": dict(FUNCTIONS),
        "rules": dict(RULES),
        "files": {name: sha256(data) for name, data in files.items()},
        "cases": described,
    }
    lines = json.dumps(manifest, separators=(",", ":"))
    lines = lines.replace('{"family"', '\n{"family"')
    return {**files, MANIFEST: f"{lines}\n".encode()}


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a published file, whose bytes never change."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            array = arrays[name]
            array = array.astype(array.dtype.newbyteorder("<"), order="C")
            held = io.BytesIO()
            np.lib.format.write_array(held, array, version=(1, 0), allow_pickle=False)
            archive.writestr(entry, held.getvalue())
    return out.getvalue()


def _key(array: np.ndarray) -> str:
    """Type and content."""
    kind = f"{array.dtype.name}{array.shape}".encode()
    return sha256(kind + np.ascontiguousarray(array).tobytes())[:24]


def write(folder: Path, cases: Iterable[Case]) -> list[Path]:
    """Writes a set; the manifest last."""
    paths = []
    for name, data in encoded(cases).items():
        paths.append(folder / name)
        write_atomically(paths[-1], data)
    return paths
