"""Casts to nearest: float32 to BF16, FP8 and FP4.

Speed is measured on normal deviates. Numerics are measured on every BF16 pattern and
2^20 random float32 patterns, with NaN, Inf and subnormals: the number of codes that
differ from ours for inputs within the format's range, and the results for an overflow,
an Inf and a NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import neuronjax as nj
from benchmarks.harness import Effort
from benchmarks.peers.blocks import as_values
from benchmarks.peers.contest import Entry, against
from neuronjax.numerics.float_format import FORMATS

NAMES = ("bfloat16", "float8_e4m3fn", "float8_e4m3", "float8_e5m2", "float4_e2m1fn")
#: Number of elements for peers that work element by element in Python or APFloat.
FEW = 2**14
RANDOM = 2**20


def deviates(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count, np.float32)


@functools.cache
def patterns() -> np.ndarray:
    """Return every BF16 value, and random bits."""
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 2**32, RANDOM, np.uint64).astype(np.uint32)
    bf16 = np.arange(2**16, dtype=np.uint32) << 16
    return np.concatenate([bf16, raw]).view(np.float32)


# ---- The contenders: an array -> a thunk that casts it.


def _jitted(function: Callable[[jax.Array], Any], x: np.ndarray) -> Callable[[], Any]:
    compiled, argument = jax.jit(function), jnp.asarray(x)
    return lambda: compiled(argument)


def _ours(name: str, x: np.ndarray) -> Callable[[], Any]:
    return _jitted(lambda x: nj.cast(x, name), x)


def _astype(name: str, x: np.ndarray) -> Callable[[], Any]:
    return _jitted(lambda x: x.astype(FORMATS[name].dtype), x)


def _ml_dtypes(name: str, x: np.ndarray) -> Callable[[], Any]:
    dtype = FORMATS[name].dtype
    return lambda: x.astype(dtype)


def _gfloat_round(name: str) -> Callable[[Any], Any]:
    """Return rounding of a NumPy or JAX array; FP4 has no NaN, so NaN becomes 0."""
    import gfloat
    from gfloat import formats

    info = getattr(formats, _GFLOAT[name])
    if name != "float4_e2m1fn":
        return lambda x: gfloat.round_ndarray(info, x)
    return lambda x: gfloat.round_ndarray(info, _numbers(x), sat=True)


def _numbers(x: Any) -> Any:
    module = jnp if isinstance(x, jax.Array) else np
    return module.where(module.isnan(x), np.float32(0), x)


def _gfloat(name: str, x: np.ndarray) -> Callable[[], Any]:
    round_to = _gfloat_round(name)
    return lambda: round_to(x)


def _gfloat_in_jit(name: str, x: np.ndarray) -> Callable[[], Any]:
    return _jitted(_gfloat_round(name), x)


def _pychop(name: str, x: np.ndarray) -> Callable[[], Any]:
    import pychop

    pychop.backend("jax")
    exponent, significand = _PYCHOP[name]
    return _jitted(pychop.Chop(exp_bits=exponent, sig_bits=significand, rmode=1), x)


def _torch(name: str, x: np.ndarray) -> Callable[[], Any]:
    import torch

    dtype, argument = getattr(torch, name), torch.from_numpy(x)
    return lambda: argument.to(dtype)


def _interpreter(name: str, x: np.ndarray) -> Callable[[], Any]:
    from benchmarks.peers.interpreter import evaluator

    dtype = FORMATS[name].dtype
    thunk = evaluator(lambda x: x.astype(dtype).astype(jnp.float32), x)
    return lambda: thunk()[0]


_GFLOAT = {
    "bfloat16": "format_info_bfloat16",
    "float8_e4m3fn": "format_info_ocp_e4m3",
    "float8_e5m2": "format_info_ocp_e5m2",
    "float4_e2m1fn": "format_info_ocp_e2m1",
}
_PYCHOP = {
    "bfloat16": (8, 7),
    "float8_e4m3": (4, 3),
    "float8_e5m2": (5, 2),
    "float4_e2m1fn": (2, 1),
}
_TORCH = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
#: Peer -> (module, cast, formats, maximum number of elements).
PEERS: Mapping[str, tuple[str, Callable[..., Any], Any, int]] = {
    "jnp.astype": ("", _astype, NAMES, 2**24),
    "ml_dtypes": ("ml_dtypes", _ml_dtypes, NAMES, 2**24),
    "gfloat": ("gfloat", _gfloat, _GFLOAT, 2**20),
    "gfloat in jax.jit": ("gfloat", _gfloat_in_jit, _GFLOAT, 2**22),
    "pychop": ("pychop", _pychop, _PYCHOP, 2**24),
    "torch": ("torch", _torch, _TORCH, 2**24),
    "StableHLO interpreter": ("jaxlib", _interpreter, NAMES, FEW),
}


# ---- Numerics.


def as_codes(result: Any, name: str) -> np.ndarray:
    """Return the codes as unsigned integers, with one code for all NaNs."""
    dtype = np.dtype(FORMATS[name].dtype)
    if type(result).__module__.startswith("torch"):
        result = result.float().numpy()
    narrow = np.asarray(result)
    if narrow.dtype != dtype:
        narrow = narrow.astype(np.float32).astype(dtype)  # a value of the format
    codes = narrow.view(f"u{dtype.itemsize}").copy()
    wide = narrow.astype(np.float32)
    codes[np.isnan(wide)] = np.iinfo(codes.dtype).max
    return codes


PROBES = {"overflow": 3.0e38, "Inf": np.inf, "NaN": np.nan}


def numerics(name: str, cast: Callable[..., Any], most: int) -> dict[str, Any]:
    """Return the number of codes that differ from ours, and the special values."""
    x = patterns()[: 4 * FEW] if most == FEW else patterns()
    ours = np.asarray(_ours(name, x)())
    mine, other = as_codes(ours, name), as_codes(cast(name, x)(), name)
    largest = float(ml_dtypes.finfo(FORMATS[name].dtype).max)
    finite = np.abs(x) <= largest  # False for NaN
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    wrong = mine != other
    return {
        "compared": int(finite.sum()),
        "differ": int((wrong & finite).sum()),
        "differ_subnormal_inputs": int((wrong & tiny).sum()),
        "differ_special": int((wrong & ~finite).sum()),
        "special": _specials(name, cast),
        "ours_special": _specials(name, _ours),
    }


def _specials(name: str, cast: Callable[..., Any]) -> dict[str, str]:
    x = np.array(list(PROBES.values()), np.float32)
    values = as_values(cast(name, x)())
    return {probe: f"{value:g}" for probe, value in zip(PROBES, values, strict=True)}


def entries(effort: Effort, *, quick: bool) -> Iterator[Entry]:
    """Yield the comparison with every peer for every format that it supports."""
    sizes = (2**20,) if quick else (2**20, 2**24)
    for name in NAMES:
        for peer, (module, cast, formats, most) in PEERS.items():
            if name not in formats:
                continue
            for size in sorted({min(size, most) for size in sizes}):
                x = deviates(size)
                yield against(
                    f"cast to {name}",
                    peer,
                    needs=module,
                    pair=lambda n=name, c=cast, x=x: (_ours(n, x), c(n, x)),
                    numerics=lambda n=name, c=cast, m=most: numerics(n, c, m),
                    effort=effort,
                    sizes={"elements": size},
                )
