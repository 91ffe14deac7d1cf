"""What casts of operands take: why BF16 may be predicted slower than TF32.

The array reads FP32 operands as TF32 at the rate of 16-bit ones (`CoreSpec.bf16`), and
to BF16 an engine casts them first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import NcMatmul, TensorCopy
from neuronjax.policy import Policy
from neuronjax.report.quantities import percent
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import QUEUES, Core, Work

AS_FAST_AS_TF32 = ("bf16", "fp16")
"""Types of a policy for which the array is no faster than for TF32."""
NO_FASTER_THAN_TF32 = "TF32 is as fast in the array, and FP32 operands need no cast"

_WORTH_A_NOTE = 0.03


def cast_notes(timeline: Timeline, policy: Policy, core: Core) -> Iterator[str]:
    """Say what the casts take that a policy asks for, where that is worth a line."""
    has_tf32 = "tfloat32" in core.spec.tensor.dtypes
    narrows = has_tf32 and policy.auto_cast_type in AS_FAST_AS_TF32
    if policy.auto_cast != "matmult" or not narrows:
        return
    products = {i.location for i in timeline.instructions if isinstance(i, NcMatmul)}
    spent = sum(
        event.queue_seconds * event.count
        for event in timeline.events
        if event.instruction >= 0
        and isinstance(event.source, Work)
        and _narrows(timeline.instructions[event.instruction])
        and timeline.instructions[event.instruction].location in products
    )
    whole = sum(timeline.busy_seconds(queue) for queue in QUEUES)
    if whole and spent >= _WORTH_A_NOTE * whole:
        to, share = policy.auto_cast_type.upper(), percent(spent / whole)
        yield (
            f"casts of FP32 to {to} take {share} of the time of all queues; "
            f"{NO_FASTER_THAN_TF32}: policy='tf32'"
        )


def _narrows(instruction: Instruction) -> bool:
    """Whether it is a cast of FP32 to 16 bits."""
    if not isinstance(instruction, TensorCopy):
        return False
    (operand,), (result,) = instruction.operands, instruction.results
    is_fp32 = operand.type.dtype == np.float32
    return is_fp32 and result.type.dtype.itemsize == 2
