"""The bits of this host, a line each, to be compared with another kind of host.

`python -m tests.host_bits flush sums functions` prints `part name digest` for these of
`PARTS`, or for all. `make arm64` runs it here and on an emulated arm64.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import neuronjax as nj
from neuronjax.capture import parsing
from neuronjax.diagnostics import joint_execution
from neuronjax.numerics import elementary
from neuronjax.numerics.exact import opaque_zero
from neuronjax.numerics.float_format import FORMATS
from neuronjax.numerics.host_kernels import choice
from neuronjax.testing import conformance, runners

Named = Iterator[tuple[str, Any]]
SMALLEST = 2.0**-126
WIDE = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def wild(seed: int, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Numbers of which each exponent from low to high is as frequent."""
    draw = np.random.Generator(np.random.PCG64(seed))
    exponents = draw.integers(low, high + 1, shape)
    significands = draw.integers(2**23, 2**24, shape) * draw.choice([-1, 1], shape)
    return np.ldexp(significands.astype(np.float64), exponents - 23).astype(np.float32)


def beside_smallest() -> tuple[np.ndarray, np.ndarray]:
    """Factors whose products lie about the smallest normal number, on both sides.

    By 2^-25 of it or less they are rounded to it.
    """
    odd = np.arange(2**23 + 1, 2**24, 4099, dtype=np.int64)
    other = (2**47 + odd // 2) // odd
    pairs = [(odd, other + n) for n in (-1, 0, 1)]
    a, b = (np.concatenate(x).astype(np.float64) for x in zip(*pairs, strict=True))
    # Of 1 - 2^-24 and 1 + 2^-23, and of such numbers, the product is just below one.
    fine = np.array([1 - 2.0**-24, 1 + 2.0**-23, 1 - 2.0**-23, 1 + 2.0**-22, 1.0])
    a = np.concatenate([np.ldexp(a, -23 - 63), np.ldexp(np.repeat(fine, 5), -63)])
    b = np.concatenate([np.ldexp(b, -24 - 63), np.ldexp(np.tile(fine, 5), -63)])
    return a.astype(np.float32), b.astype(np.float32)


def pairs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Operands whose results are about the smallest normal number, and others."""
    return {
        "beside": beside_smallest(),
        "small": (wild(1, (2**14,), -80, -40), wild(2, (2**14,), -80, -40)),
        "any": (wild(3, (2**14,), -126, 120), wild(4, (2**14,), -126, 120)),
        "subnormal": (wild(5, (999,), -149, -120), wild(6, (999,), -20, 60)),
    }


def flush() -> Named:
    """Arithmetic whose results are about the smallest normal number."""
    step = nj.jit(
        lambda a, b: (a * b, a * b + a * b, a / b, a + b, a * b - a), policy="fp32"
    )
    names = ("product", "sum of products", "quotient", "sum", "difference")
    for kind, (a, b) in pairs().items():
        for name, found in zip(names, step(a, b), strict=True):
            yield f"{name} of {kind}", found


def lanes() -> Named:
    """Operations that a comparison executes in all runs at once."""
    for kind, operands in pairs().items():
        wide = [x.astype(np.float64) for x in operands]
        lanes = operands, wide, [x * 1.001 for x in wide]
        for name in sorted(joint_execution._FUNCTIONS):
            own = [*zip(*([*map(np.abs, x)] for x in lanes), strict=True)]
            made = joint_execution._executed(name, own)
            if made is not None:  # no sum of squares overflows
                yield f"{name} of {kind}", made[:3]


def sums() -> Named:
    """Contractions of every kind of operands, with products that are subnormal too."""
    for kernels in (True, False):
        choice.enabled = kernels
        how = "kernels" if kernels else "XLA"
        for policy in ("fp32", "bf16", "fp8", "mxfp8", "mxfp4"):
            step = nj.jit(lambda a, b: a @ b, target="trn3", policy=policy)
            for low, high in ((-3, 3), (-80, -40), (-64, -62), (-126, 60)):
                a, b = wild(7, (13, 320), low, high), wild(8, (320, 21), low, high)
                yield f"{policy} {low} {high} {how}", step(a, b)
    choice.enabled = True


def casts() -> Named:
    """All codes of 16 bits to every format, and of every format to float32."""
    for dtype in WIDE:
        codes = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
        for name in FORMATS:
            for overflow in ("ieee", "saturate"):
                found = nj.cast(codes, name, overflow=overflow)
                yield f"{dtype.name} to {name} {overflow}", found
    for name, fmt in FORMATS.items():
        if fmt.width <= 8:
            codes = np.arange(2**fmt.width, dtype=np.uint8).view(fmt.dtype)
            yield f"{name} to float32", nj.cast(jnp.asarray(codes), "float32")


def functions() -> Named:
    """Elementary functions of 2^16 numbers, of all powers of two, and beside them."""
    powers = np.arange(0, 0x7F800000, 0x00800000, dtype=np.int64)
    bits = np.concatenate([powers - 1, powers, powers + 1])[1:]
    beside = bits.astype(np.uint32).view(np.float32)
    draw = np.random.Generator(np.random.PCG64(11))
    some = draw.integers(0, 2**32, 2**16, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([beside, -beside, some.view(np.float32)])
    for name, function in elementary.UNARY.items():
        yield name, jax.jit(lambda x, f=function: f(x, opaque_zero()))(x)
    for name, function in elementary.BINARY.items():
        call = jax.jit(lambda x, y, f=function: f(x, y, opaque_zero()))
        yield name, call(x, np.roll(x, 17))


def vectors() -> Named:
    """The published vectors: what came out, and whether it is what is published."""
    for case in conformance.read():
        (result,) = conformance.run(runners.Neuronjax(), [case]).results
        yield f"{case.name} {result.outcome}", np.zeros(0)


def goldens() -> Named:
    """Stored programs."""
    from tests.golden import elsewhere

    parsing.SECONDS *= 200  # an emulated processor takes longer to parse
    for name, digest in elsewhere.digests():
        yield name, np.frombuffer(digest.encode(), np.uint8)


def steps() -> Named:
    """A step of training under every policy."""
    from tests.conformance import bits
    from tests.zoo import PROGRAMS

    for program in ("mlp_adam", "cnn_sgd_momentum", "gpt_adam"):
        function, arguments = PROGRAMS[program].make(0, size="tiny")
        for policy in bits.POLICIES:
            try:
                yield f"{program} {policy}", bits.emulated(function, policy)(*arguments)
            except nj.NeuronJaxError as error:  # the chip or the policy has it not
                yield f"{program} {policy} {type(error).__name__}", np.zeros(0)


PARTS: dict[str, Callable[[], Named]] = {
    part.__name__: part
    for part in (flush, lanes, sums, goldens, vectors, casts, functions, steps)
}


def digest(tree: Any) -> str:
    """Return a hash of all bits, shapes and dtypes."""
    state = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        x = np.asarray(leaf)
        state.update(f"{x.dtype} {x.shape} ".encode())
        state.update(x.tobytes())
    return state.hexdigest()[:16]


def main(parts: list[str]) -> None:
    """Print a line for each result of these parts, as soon as it is there."""
    for part in parts or PARTS:
        for name, found in PARTS[part]():
            print(f"{part} {name} {digest(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
