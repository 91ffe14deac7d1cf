"""`core_barrier` and `sendrecv`: order and movement; see `nki.linking`."""

from __future__ import annotations

from neuronjax.execution.tiles.registry import (
    Bits,
    Context,
    Operands,
    Results,
    Signature,
    executes,
)


@executes("core_barrier")
def core_barrier(i: Signature, x: Operands, c: Context) -> Results:
    """Nothing: instructions already are in the order that it makes."""
    return ()


@executes("sendrecv")
def sendrecv(i: Signature, x: Operands, c: Context) -> Results:
    """The other core's tile."""
    return (Bits(x[0]),)
