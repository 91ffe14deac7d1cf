"""The program zoo: whole train steps over which bit-exactness is proven.

Plain JAX, Flax and Optax; nothing here imports the emulator (the GPT module of the
quickstart is itself plain). Every program comes in a "tiny" size, small enough to run
op by op, and a "small" one. `python -m tests.zoo` prints the operations they use.
"""

from __future__ import annotations

from tests.zoo import cnn, gpt, mlp, moe, recurrent, transforms
from tests.zoo.operations import stablehlo_ops
from tests.zoo.program import Program

PROGRAMS: dict[str, Program] = {
    program.name: program
    for module in (mlp, gpt, cnn, recurrent, moe, transforms)
    for program in module.PROGRAMS
}

__all__ = ["PROGRAMS", "Program", "stablehlo_ops"]
