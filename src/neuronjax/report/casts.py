"""The time that casts of a policy take, which explains why fewer bits may be slower.

With TF32 the array reads FP32 operands without a cast, at the rate of 16-bit operands
(`CoreSpec.bf16`). With BF16 an engine casts them first. With FP8 every operand is also
scaled by its largest magnitude, for which the whole operand is read an additional time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from neuronjax.ir.instruction_set import NcMatmul
from neuronjax.policy import Policy
from neuronjax.report.places import place
from neuronjax.report.quantities import percent, seconds
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import QUEUES, Core, Transfer, Work

AS_FAST_AS_TF32 = ("bf16", "fp16")
"""Values of `auto_cast_type` with which TensorE is only as fast as with TF32."""
NO_FASTER_THAN_TF32 = "TensorE is as fast in TF32, which needs no cast of FP32 operands"

_KINDS = {
    "tensor_reduce": "largest magnitudes",
    "scale_from_amax": "scales",
    "tensor_scalar": "scaling and casts",
}
_CASTS, _TURNS = "casts", "transposes"
#: Advice for current scaling, based on studies of the GPT of the quickstart.
_CHEAPER = (
    "scaling='delayed' takes the scales from earlier steps, which is faster; use it "
    "with overflow='saturate'"
)
_WORTH_A_NOTE = 0.03


def operand_seconds(timeline: Timeline) -> Mapping[tuple[str, str], float]:
    """Return the seconds that all queues together spend on preparing operands of
    matmuls, by (type of work, module or source line)."""
    products = {i.location for i in timeline.instructions if isinstance(i, NcMatmul)}
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for event in timeline.events:
        if event.instruction < 0:
            continue
        members, source = timeline.fused[event.instruction], event.source
        kind = _TURNS if _turns(source) else ""
        if members[0].location in products and type(members[0]) is not NcMatmul:
            names = {member.name for member in members}
            own = [what for name, what in _KINDS.items() if name in names]
            if not isinstance(source, Transfer):
                own += [_CASTS] * ("tensor_copy" in names)
            elif source.reason != "spill_reload":  # the matmul itself needs this load
                own = []
            kind = kind or next(iter(own), "")
        if kind:
            found = members[0].location  # a callee's modules are not always known
            part = found.module or place(found.source)
            spent[kind, part] += event.queue_seconds * event.count
    return spent


def _turns(source: Work | Transfer) -> bool:
    if isinstance(source, Transfer):
        return source.transposes
    return bool(source.transpose_flops) or source.opcode == "DMA_TRANSPOSE"


def cast_notes(timeline: Timeline, policy: Policy, core: Core) -> Iterator[str]:
    """Yield a note on the time of a policy's casts, if its share is above 3 %."""
    to, spent = policy.auto_cast_type, operand_seconds(timeline)
    whole = sum(timeline.busy_seconds(queue) for queue in QUEUES)
    kinds: dict[str, float] = defaultdict(float)
    parts: dict[str, float] = defaultdict(float)
    for (kind, part), taken in spent.items():
        kinds[kind] += taken
        parts[part] += taken
    total = sum(spent.values())
    casts = total - kinds[_TURNS]
    if policy.auto_cast != "matmult" or not casts > _WORTH_A_NOTE * whole:
        return
    taking = "takes {} of the time of all queues"
    if to in AS_FAST_AS_TF32 and "tfloat32" in core.spec.tensor.dtypes:
        yield (
            f"casting FP32 to {to.upper()} {taking.format(percent(casts / whole))}; "
            f"{NO_FASTER_THAN_TF32}. Try policy='tf32'"
        )
    elif to.startswith("fp8") and policy.scaling == "current":
        each = ", ".join(
            f"{seconds(taken)} for {what}" for what, taken in kinds.items()
        )
        most = max(parts, key=lambda part: parts[part])
        yield (
            f"preparing FP8 operands {taking.format(percent(total / whole))} ({each}); "
            f"{percent(parts[most] / total)} of this is for {most}. {_CHEAPER}"
        )
