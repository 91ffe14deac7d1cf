"""One instruction at a time: the bits of a run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.diagnostics.compilations import Compilations
from neuronjax.execution import interpreter
from neuronjax.execution.interpreter import forget_kernels
from neuronjax.execution.stepper import Stepper
from neuronjax.hardware import resolve_target
from neuronjax.ir.instruction import (
    Block,
    Buffer,
    Instruction,
    InstructionProgram,
    View,
)
from neuronjax.ir.instruction_set import Activation, DmaCopy, NcMatmul, TensorTensor
from neuronjax.ir.program import TensorType
from neuronjax.lowering import lower
from tests.arrays import bits, normal
from tests.conformance import instructions
from tests.conformance.bits import POLICIES
from tests.zoo import PROGRAMS

KEY = jnp.uint32(0)


class Steps:
    """Executes again what a run has executed, and compares bits."""

    def __init__(self, program: InstructionProgram) -> None:
        self.stepper, self.kinds = Stepper(program), set[type]()

    def did_execute(self, instruction: Instruction, operands, results) -> None:
        if instruction.blocks or not instruction.results:
            return
        found = self.stepper.execute(instruction, operands, KEY)
        self.kinds.add(type(instruction))
        for ours, theirs in zip(found, results, strict=True):
            ours, theirs = np.asarray(ours), np.asarray(theirs)
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            both = np.isnan(ours) & np.isnan(theirs) if ours.dtype.kind == "f" else 0
            same = (bits(ours) == bits(theirs)) | both
            assert same.all(), instruction.location


@pytest.mark.slow_except("mlp_linen_adam-fp8")
@pytest.mark.parametrize("policy", ["bf16", "fp8"])
@pytest.mark.parametrize("name", ["gpt_forward", "cnn_forward", "mlp_linen_adam"])
def test_every_instruction_has_the_bits_of_a_run(name, policy):
    function, arguments = PROGRAMS[name].make(0)
    leaves, tree = jax.tree.flatten(arguments)
    flat = jax.jit(lambda *x: function(*jax.tree.unflatten(tree, x)))
    captured = nj.jit(flat).lower(*leaves).program
    target, chosen = resolve_target("trn2"), POLICIES[policy]
    program = lower(captured, target=target, policy=chosen)
    steps = Steps(program)
    with jax.disable_jit():
        interpreter.run(program, leaves, listeners=[steps])
    assert {TensorTensor, DmaCopy, NcMatmul} <= steps.kinds


def step(shape, dtype=np.float32, cls=TensorTensor, operands=2, **fields):
    """An instruction of one shape, and random operands."""
    buffer = Buffer(0, TensorType(shape, np.dtype(dtype)))
    views = (View(buffer),) * operands
    i = cls(operands=views, results=(buffer,), engine="vector", **fields)
    x = [normal(*shape, seed=n, dtype=dtype) for n in range(operands)]
    return i, x


@pytest.fixture
def stepper():
    return Stepper(InstructionProgram(Block((), (), ()), {}))


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (64,), (65,), (31, 17, 9)])
def test_an_array_of_any_size_has_the_bits_of_its_own_program(stepper, shape):
    for fields in (
        {"op": "divide"},
        {"cls": Activation, "operands": 1, "function": "exponential"},
    ):
        i, x = step(shape, **fields)
        [found] = stepper.execute(i, x, KEY)
        kind, result = fields.pop("cls", TensorTensor), (shape, np.float32)
        fields.pop("operands", None)
        [want] = instructions.run(kind, x, result, engine="vector", **fields)
        assert found.shape == shape
        assert (bits(found) == bits(want)).all()


def test_what_is_exact_is_not_compiled(stepper):
    forget_kernels()
    before = Compilations.so_far()
    for shape in [(3, 5), (1 << 12,)]:
        for op in ("add", "multiply", "divide", "maximum"):
            i, x = step(shape, op=op)
            stepper.execute(i, x, KEY)
    assert (Compilations.so_far() - before).programs == 0


def test_a_large_array_is_not_compiled_either(stepper):
    before = Compilations.so_far()
    i, x = step(((1 << 20) + 1,), op="add")
    [found] = stepper.execute(i, x, KEY)
    np.testing.assert_array_equal(found, x[0] + x[1])
    assert (Compilations.so_far() - before).programs == 0
