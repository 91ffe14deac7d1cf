"""`device_print`: a callback to the host with the values."""

from __future__ import annotations

import functools

import jax
import numpy as np

from neuronjax.execution.tiles.registry import (
    Context,
    Operands,
    Results,
    Signature,
    executes,
)


@executes("device_print")
def device_print(i: Signature, x: Operands, c: Context) -> Results:
    """The prefix and the value, in the order of the instructions."""
    del c
    jax.debug.callback(functools.partial(_show, i.attributes["prefix"]), x[0])
    return ()


def _show(prefix: str, value: jax.Array) -> None:
    print(prefix, np.asarray(value), flush=True)
