"""Every instruction has an engine that executes it, or is the interpreter's."""

from __future__ import annotations

import pytest

from neuronjax.execution.engines.dispatch import execute
from neuronjax.ir.collective_set import Collective, PartitionId, Spmd
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import Branch, Call, Loop, ReadAmax, RecordAmax
from tests.conformance.instructions import instruction_classes

# Control flow, exchanges, and what reads or writes the state of a run.
INTERPRETED = (Branch, Call, Collective, Loop, PartitionId, ReadAmax, RecordAmax, Spmd)


@pytest.mark.parametrize("name", instruction_classes())
def test_every_instruction_has_an_engine_or_is_interpreted(name):
    kind = instruction_classes()[name]
    default = execute.dispatch(Instruction)
    assert (execute.dispatch(kind) is default) == issubclass(kind, INTERPRETED)
