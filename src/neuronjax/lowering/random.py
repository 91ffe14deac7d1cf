"""Rules of random bits."""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import Rng
from neuronjax.ir.program import Op
from neuronjax.lowering.context import Context
from neuronjax.lowering.registry import lowers


@lowers("stablehlo.rng_bit_generator")
def rng_bit_generator(op: Op, context: Context) -> Iterator[Instruction]:
    algorithm = op.attributes["rng_algorithm"]
    yield context.whole(op, Rng, "gpsimd", algorithm=algorithm)
