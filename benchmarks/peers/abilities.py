"""What each peer emulates at all: the part of a comparison that no clock shows.

"yes", "no", or the part that there is, in words. What is said of a peer is of the
version that was measured, from its documentation and code; the numerics of each
measured entry are the evidence where there is one.
"""

from __future__ import annotations

QUESTIONS = (
    "FP8, FP4 casts",
    "stochastic rounding",
    "MX scale rules",
    "order of addition",
    "PSUM",
    "elementwise engines",
    "collectives",
    "whole programs, grad",
    "time model",
)

ABILITIES: dict[str, tuple[str, ...]] = {
    "neuronjax": (
        "yes",
        "casts, matmul operands, engine writes",
        "six, named",
        "modelled, four choices",
        "yes, FP32 and BF16",
        "yes",
        "yes, fold trees",
        "yes",
        "yes",
    ),
    "StableHLO interpreter": (
        "yes",
        "no",
        "no",
        "one by one, fixed",
        "no",
        "op by op, not fused",
        "yes, no chip's order",
        "yes, very slowly; no RNG",
        "no",
    ),
    "qwix": (
        "as matmul operands",
        "integers only",
        "one (rceil)",
        "the host's",
        "no",
        "no",
        "the host's",
        "yes, matmuls and convolutions",
        "no",
    ),
    "pychop": (
        "by exponent and mantissa",
        "yes",
        "one (floor)",
        "the host's",
        "no",
        "array functions of its own",
        "no",
        "layers of its own",
        "no",
    ),
    "gfloat": (
        "yes",
        "yes, bits given",
        "any, a Python function",
        "no matmul",
        "no",
        "no",
        "no",
        "no",
        "no",
    ),
    "ml_dtypes, jnp.astype": (
        "yes",
        "no",
        "no",
        "the host's",
        "no",
        "no",
        "the host's",
        "what is written by hand",
        "no",
    ),
    "torch, by hand": (
        "FP8; FP4 by hand",
        "by hand",
        "what is written by hand",
        "the host's",
        "no",
        "no",
        "the host's",
        "PyTorch's, not JAX's",
        "no",
    ),
}

#: Peers that could not be run here, and why.
NOT_RUN = {
    "nki.simulate": "its wheel is on the vendor's index and not on PyPI. It runs one "
    "kernel at a time, without collectives, capacity or time.",
    "microxcaling": "it has no wheel. The plain PyTorch emulation here follows the "
    "same published recipe.",
    "Trainium": "there is no hardware here. What others measured on it is in sections "
    "below.",
}
