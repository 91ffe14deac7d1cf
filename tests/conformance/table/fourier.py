"""stablehlo.fft of every kind, along one to three axes, of even, odd and prime sizes.

The interpreter has no FFT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.table.case import Close, Input, only_native, rows

Function = Any

OF_COMPLEX: Mapping[str, Function] = {
    "fft": jnp.fft.fft,
    "ifft": jnp.fft.ifft,
    "fft2": jnp.fft.fft2,
    "ifft2": jnp.fft.ifft2,
    "fft_first": lambda x: jnp.fft.fft(x, axis=0),
    "fft_padded": lambda x: jnp.fft.fft(x, n=11),
    "fft_cut": lambda x: jnp.fft.fft(x, n=5),
    "fft_ortho": lambda x: jnp.fft.fft(x, norm="ortho"),
    "irfft": lambda x: jnp.fft.irfft(x),
    "irfft_odd": lambda x: jnp.fft.irfft(x, n=7),
    "irfft2": jnp.fft.irfft2,
    "hfft": jnp.fft.hfft,
    "fftn": lambda x: jnp.fft.fftn(x.reshape(2, 3, 8)),
    "lax_fft3": lambda x: lax.fft(x.reshape(2, 3, 8), lax.FftType.FFT, (2, 3, 8)),
    "fft_power_of_two": lambda x: jnp.fft.fft(x.reshape(3, 16)),
    "fft_of_one": lambda x: jnp.fft.fft(x[:, :1]),
}
OF_REAL: Mapping[str, Function] = {
    "rfft": jnp.fft.rfft,
    "rfft_odd": lambda x: jnp.fft.rfft(x, n=7),
    "rfft2": jnp.fft.rfft2,
    "rfftn": lambda x: jnp.fft.rfftn(x.reshape(2, 3, 8)),
    "ihfft": jnp.fft.ihfft,
    "fft_of_real": jnp.fft.fft,
    "grad_rfft": jax.grad(lambda x: (jnp.abs(jnp.fft.rfft(x)) ** 2).sum()),
    "fftconvolve": lambda x: jax.scipy.signal.fftconvolve(x[0], x[1], mode="same"),
}


def matrix(dtype: str) -> tuple[Input, ...]:
    return (Input((6, 8), dtype),)


CASES = only_native(
    [
        *rows(OF_COMPLEX, ("complex64",), matrix, Close(1e-5, 1e-5)),
        *rows(OF_REAL, ("float32",), matrix, Close(1e-5, 1e-5)),
    ]
)
