"""The name of a fault, and a sentence with the evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neuronjax.diagnostics.comparison_tables import percent, short
from neuronjax.diagnostics.faults.better_forms import CONDITIONED
from neuronjax.diagnostics.faults.evidence import (
    ADDS,
    BOUNDS,
    OpEvidence,
    largest_of,
    rounds,
)
from neuronjax.diagnostics.faults.flow import AMPLIFIES
from neuronjax.diagnostics.faults.judgement import HOPELESS, UNSEEN
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.search import ANGLES, NEAR_ONE, Suspect
from neuronjax.diagnostics.faults.traits import buries, cast_limit, largest_operand
from neuronjax.execution.probes.signs import (
    FEW,
    MOSTLY,
    SINGULAR,
    absorption_kind,
    nonfinite_kind,
)

#: Kind of fault -> advice.
KINDS: Mapping[str, str] = {
    "overflow": "subtract the maximum or scale before this op; or keep its result in "
    "FP32 or BF16",
    "underflow": "work with logarithms, or scale before this op; FP32 and BF16 hold "
    "smaller numbers",
    "non-finite": "guard the operand of this op with jnp.where, not the result",
    "absorption": "keep the sum in FP32, or round the sum stochastically",
    "stagnation": "accumulate in FP32, or add in blocks",
    "cancellation": "rewrite the difference (expm1, log1p, a product), or subtract the "
    "mean of the numbers first",
    "singular": "keep away from the singular point: add an epsilon, or use a "
    "function made for this point (log1p, logsumexp, arctan2)",
    "integer": "use an integer that is wide enough, and do not convert it to a float",
    "saturation": "scale the numbers into the format's range, or let a Rule give the "
    "layer another format",
    "coarse": "keep the result in FP32 up to the op that shows the error",
    "other": "compare this op alone with float64",
}
#: Kind of fault -> advice if the op computes in FP32, or if FP32 does not help.
IN_FP32: Mapping[str, str] = {
    "overflow": "subtract the maximum or scale before this op",
    "underflow": "work with logarithms, or scale before this op",
    "absorption": "add small numbers first, or use compensated summation",
    "stagnation": "add in blocks, or use compensated summation",
    "coarse": "compute the result by a formula that needs fewer digits",
}
WHOLE_IN_FP32 = "keep positions and counts as integers, or in FP32"
OUT_OF_MATMUL = (
    "keep whole numbers out of the matmul: multiply elementwise, or give the "
)
OUT_OF_MATMUL += 'matmul a Rule with auto_cast="none"'
LOST_GUARD = "use an epsilon that the format holds (1e-4 in float16), or add it in FP32"
MISREAD = "use a constant that the format holds, or apply the constant in float32"
INF_BEFORE = "correct the op that makes Inf, or guard that op's operand by jnp.where"
WRONG_BEFORE = "correct the op that makes the wrong operand, or guard the operand"
LOSS_SCALE = "use a smaller scale, or one that is halved while gradients overflow"
ONLY_THE_STEP = "keep this matmul in FP32 by a Rule, or use it to compute only the "
ONLY_THE_STEP += "change of the state, and add the change in FP32"
LOG1P = "write jnp.log1p(x) for the logarithm of 1 + x, without this sum"
ANGLE = "compute the angle by jnp.arctan2 of its sine and cosine"
FFT = (
    "add products directly (jnp.convolve): an FFT's errors are as large in small "
    "numbers as in the largest"
)
KEEP_REMAINDERS = "add the remainder of each rounding to the next update"
#: By `Suspect.scale`: a kind of fault, its reason and a remedy.
_BY_SCALE = {
    "fill": (
        "underflow",
        "this constant makes the scale of the matmul's cast so large that other "
        "numbers become zero",
        "use a constant that is no larger than the other numbers, such as 0",
    ),
    "maximum": (
        "underflow",
        "the program subtracts this maximum from several rows before an exponential, "
        "and rows of much smaller numbers become zero",
        "subtract the maximum of each row: jnp.max(x, axis=-1, keepdims=True)",
    ),
    "differences": (
        "coarse",
        "this cast rounds differences, and a running sum adds up the rounding errors, "
        "because no later difference corrects them",
        "take each difference to the running sum, so that a code corrects the errors "
        "of the codes before it",
    ),
    "square": (
        "singular",
        "this product of a matrix and itself has the square of the matrix's condition "
        "number, which multiplies its rounding errors when equations are solved",
        CONDITIONED,
    ),
}
_SUMS = frozenset(("reduce", "reduce_window"))
#: A sum at least this many times as large as its smaller addend absorbs the addend.
LARGER = 4.0
_DIFFERENCES = frozenset(
    ("subtract", "add", "reduce", "dot_general", "convolution", "fft")
)
_NOUNS: Mapping[str, str] = {
    "subtract": "the subtraction",
    "add": "the addition",
    "multiply": "the multiplication",
    "divide": "the division",
    "convert": "the next cast",
    "dot_general": "the matmul",
    "reduce": "the reduction",
}


@dataclass(frozen=True)
class FaultName:
    """The kind of a fault, a sentence with the evidence, and any special advice."""

    kind: str
    evidence: str
    advice: str = ""


def named(suspect: Suspect) -> FaultName:
    """Return the name of a fault, by the first rule of `_RULES` that fits `suspect`."""
    trace, evidence = suspect.trace, suspect.trace.shown
    for rule in _RULES:
        found = rule(suspect, trace, evidence)
        if found is not None:
            return found
    if suspect.amplifier is not None and trace.own > UNSEEN:
        return FaultName("coarse", _of_its_own(trace.own))
    error = short(evidence.result.error)
    return FaultName("other", f"its result has a relative error of {error}")


def _of_its_own(error: float) -> str:
    return f"its own rounding makes a relative error of {short(error)}"


def _of_lost(share: float) -> str:
    return f"{percent(share)} of its numbers are off by more than half of their value"


def _by_scale(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if s.scale not in _BY_SCALE:
        return None
    return FaultName(*_BY_SCALE[s.scale])


def _wraps(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    count = t.wrapped or t.misread
    if not count and short_name(t).startswith("shift_right"):
        size = short(next(iter(e.operands.values())).norm)
        text = f"the shift drops digits of numbers with a root mean square of {size}"
        return FaultName("integer", text, "multiply and add first, and shift the sum")
    if not count:
        return None
    dtype = t.path.op.results[0].type.dtype
    if rounds(t.path.op) and dtype.itemsize == 1:
        text = f"{count} numbers are cut off at {np.iinfo(dtype).max}"
        return FaultName("saturation", text)
    what = "numbers" if short_name(t) == "convert" else "sums or products"
    return FaultName("integer", f"{count} {what} are beyond the range of {dtype.name}")


def _rounds_whole(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not t.rounds_whole:
        return None
    held, of, advice = _format(t), e.result.largest, _of_whole(e)
    if t.cast is not None and of * unit_of(held) < 1:
        held, of, advice = t.cast.format, largest_operand(e), OUT_OF_MATMUL
    unit, largest = unit_of(held), f"{of:.0f}"
    if not unit:
        return FaultName("integer", f"integers up to {largest} are computed in FP32")
    text = f"the whole numbers reach {largest}; {held} holds all of them only up to "
    return FaultName("integer", f"{text}{1 / unit:.0f}", advice)


def _of_whole(e: OpEvidence) -> str:
    return WHOLE_IN_FP32 if e.result.largest <= 2.0**24 else ""


def _overflows(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    share = e.result
    if not share.beyond or share.nonfinite == 0:
        return None
    should = f"the largest result should be {short(share.largest)}"
    is_finite = not any(x.nonfinite for x in e.operands.values())
    if share.nonfinite_reference and is_finite:
        should = "the largest result is beyond float64 too"
    text = f"{percent(share.beyond)} of its results are beyond {_end(t)}; {should}"
    return FaultName("overflow", text)


def _misreads(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if s.misread is None:
        return None
    kind = {math.inf: "overflow", 0.0: "underflow"}.get(s.misread.held, "coarse")
    return FaultName(kind, str(s.misread), MISREAD)


def _is_unguarded(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not s.lost_guard:
        return None
    result = (e if s.amplifier is None else s.amplifier.shown).result
    count = f"{result.nonfinite} of {result.elements} numbers"
    return FaultName("singular", f"{s.lost_guard}; {count} are Inf or NaN", LOST_GUARD)


def _makes_nonfinite(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    share = e.result
    operands = e.operands.values()
    if share.nan and any(x.nonfinite and not x.nan for x in operands):
        text = f"{share.nan} of {share.elements} results are NaN: an operand is Inf"
        return FaultName("non-finite", text, INF_BEFORE)
    if not share.nonfinite or any(x.nonfinite for x in operands):
        return None
    counts = [("NaN", share.nan), ("Inf", share.nonfinite - share.nan)]
    (name, count), *others = [(name, n) for name, n in counts if n]
    text = f"{count} of {share.elements} numbers are {name}"
    text += "".join(f" and {n} are {name}" for name, n in others)
    text += ", though all operands are finite"
    if share.nonfinite_reference == share.nonfinite:
        text += "; float64 has them too"
    elif math.isfinite(e.own):
        text += "; with the reference's operands, no number is Inf or NaN"
    return FaultName(nonfinite_kind(short_name(t), share.nan > 0), text)


def _overflows_in_cast(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    broken = any(x.nonfinite for x in e.operands.values())
    if t.cast is None or broken or not e.result.nonfinite:
        return None
    largest, limit, name = largest_operand(e), cast_limit(t), t.cast.format
    if largest <= limit:
        return None
    text = f"an operand reaches {short(largest)}, but {name} ends at {short(limit)}"
    return FaultName("overflow", text)


def _bounds(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if s.bounding is None:
        return None
    e = s.bounding
    if s.scale and t.path.op.name in BOUNDS:
        e = t.worst  # this op bounds the scale, not the numbers
    elif s.scale:
        return _of_scale(s, e)
    if not e.cut_off:
        text = (
            f"rounding changes {percent(t.flattened)} of the numbers by 100 % or more:"
        )
        return FaultName("coarse", f"{text} the scale does not fit these numbers")
    largest = short(largest_operand(e))
    bound = short(min(e.result.largest, largest_of(_format(t))))
    text = f"the largest numbers (up to {largest}) are cut off at {bound}"
    if bound == largest:
        text = f"numbers are cut off on one side; the largest, {largest}, is not"
    return FaultName("saturation", text)


def _of_scale(s: Suspect, e: OpEvidence) -> FaultName:
    """Name the fault of a scale; `e` is the execution that loses the scaled numbers."""
    if s.scale == "loss":
        reach = f"with this loss scale, gradients reach {short(e.result.largest)}"
        return FaultName("overflow", f"{reach}, beyond the format's range", LOSS_SCALE)
    largest, kind = short(largest_operand(e)), "saturation"
    numbers = f"with this scale, the largest numbers (up to {largest})"
    text = f"{numbers} are cut off"
    if s.scale == "large":
        share, kind = percent(e.result.nothing), "underflow"
        text = f"with this scale, {share} of the numbers become zero"
    elif e.result.beyond and e.result.nonfinite:
        kind, text = "overflow", f"{numbers} leave the format's range"
    return FaultName(kind, text)


def _saturates(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not e.result.clipped:
        return None
    text = f"{percent(e.result.clipped)} of its numbers are cut off at {_end(t)}"
    return FaultName("saturation", text)


def _absorbs(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not t.absorbs or e.result.beneath > MOSTLY:
        return None
    text = f"in {percent(t.absorbed[0])} of the sums the smaller addend changes nothing"
    return FaultName(absorption_kind(s.is_running), text)


def _loses_update(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not s.is_update:
        return None
    if rounds(t.path.op):
        text = f"the cast rounds {percent(t.flattened)} of the state's updates to zero"
        return FaultName("absorption", text, KEEP_REMAINDERS)
    text = "the state's update is less than half the spacing of floats near the state"
    return FaultName("absorption", f"{text}, so the state stays as it is")


def _underflows(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    gone = t.zeros or (e.result.nothing if s.amplifier else 0.0)
    difference = short_name(t) in ("subtract", "add", "reduce")
    breaks = s.amplifier is not None and s.amplifier.made_nonfinite is not None
    if gone < (0 if breaks else FEW) or (s.role == "amplifies" and t.beneath):
        return None
    if not gone or not (difference or t.beneath or short_name(t) == "exponential"):
        return None
    text = f"{percent(gone)} of its numbers became zero in {_format(t)}"
    difference = difference and not t.beneath
    return FaultName("cancellation" if difference else "underflow", text)


def _narrows(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if short_name(t) != "convert":
        return None
    source = t.path.op.operands[0].type.dtype
    text = f"rounding to {_format(t)} makes a relative error of {short(e.result.error)}"
    if e.own < e.result.error / 2:
        text = f"its operand has a relative error of {short(e.result.error)}"
    elif s.amplifier is not None:
        text += _makes(s.amplifier)
    if source.kind in "iu":
        return FaultName("integer", text, _of_whole(e))
    return FaultName("coarse", text)


def _makes(t: OpTrace) -> str:
    op = _NOUNS.get(short_name(t), short_name(t))
    if t.first is None and t.made_nonfinite is None:
        is_choice = any(v.type.dtype.kind in "iub" for v in t.path.op.results)
        return f"; {op} chooses by the rounded numbers" if is_choice else ""
    shown = math.inf if t.first is None else t.first[2].result.error
    if math.isinf(shown):
        return f"; {op} turns this error into Inf or NaN"
    return f"; {op} turns this error into a relative error of {short(shown)}"


def _amplifies(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    operand = e.error_before
    lost = max((x.lost for x in e.operands.values()), default=0.0)
    if short_name(t) in _DIFFERENCES and e.result.lost > lost and s.follows:
        advice = FFT if short_name(t) == "fft" else ""
        return FaultName("cancellation", _of_lost(e.result.lost), advice)
    if e.own >= e.result.error or operand >= e.result.error:
        return None
    text = f"it turns a relative error of {short(operand)} into {short(e.result.error)}"
    if e.result.error < AMPLIFIES * operand:
        text = f"its operands have a relative error of {short(operand)} already"
    if short_name(t) in SINGULAR:
        is_angle = t.path.op.name in ANGLES
        return FaultName("singular", text, ANGLE if is_angle else "")
    # A sum that is larger than both addends cancels nothing.
    largest = max((x.norm for x in e.operands.values()), default=0.0)
    grows = short_name(t) in ("add", "subtract") and e.result.norm > largest
    is_difference = short_name(t) in _DIFFERENCES and not grows
    return FaultName("cancellation" if is_difference else "coarse", text)


def _buries(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if s.role != "makes" or short_name(t) not in ("add", "subtract"):
        return None
    lost = buries(t, e)
    if lost < LARGER * e.own:
        return None
    text = f"the rounding error is {short(lost)} times the smaller addend"
    return FaultName("absorption", text)


def _is_near_one(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if s.amplifier is None or s.amplifier.path.op.name not in NEAR_ONE:
        return None
    is_angle = s.amplifier.path.op.name in ANGLES
    if not is_angle and t.path.op.name not in ADDS:
        return None  # the operand of a logarithm is near 1 if a sum with 1 made it
    advice = ANGLE if is_angle else LOG1P
    text = f"{_format(t)} keeps few digits of the distance of these numbers from 1"
    return FaultName("coarse", f"{text}{_makes(s.amplifier)}", advice)


def _adds_up(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    is_small = e.own < e.result.error / 2
    if s.role != "makes" or t.cast is None or not is_small or not t.is_in_loop:
        return None
    text = f"{_of_its_own(e.own)} in each iteration, and these errors add up"
    return FaultName("coarse", text, ONLY_THE_STEP)


def _rounds(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if e.own < e.result.error / 2:
        return None
    if math.isinf(e.own):
        return FaultName("overflow", f"exact operands give results beyond {_end(t)}")
    text = _of_its_own(e.own)
    if short_name(t) in _SUMS:
        return FaultName("stagnation", text)
    if t.cast is not None:
        sums = unit_of(t.cast.sums)
        if sums >= t.cast.unit:
            text = f"its partial sums are kept in {t.cast.sums}; {text}"
            return FaultName("stagnation", text)
        largest, limit = largest_operand(e), cast_limit(t)
        if largest > limit and e.own > HOPELESS:
            what = f"the cast cuts off the largest numbers (up to {short(largest)}) at"
            return FaultName("saturation", f"{what} {short(limit)}; {text}")
        lost = max(e.result.lost, e.result.zeros)
        if lost:
            text += f"; {_of_lost(lost)}"
        return FaultName("underflow" if lost > FEW else "coarse", text)
    if e.result.beneath > MOSTLY:
        what = f"{percent(e.result.beneath)} of its numbers are smaller than"
        what += f" {_format(t)}'s smallest normal number"
        return FaultName("underflow", f"{what}; {text}")
    return FaultName("coarse", text)


_RULES = (
    _by_scale,
    _wraps,
    _misreads,
    _overflows,
    _overflows_in_cast,
    _is_unguarded,
    _makes_nonfinite,
    _bounds,
    _saturates,
    _absorbs,
    _loses_update,
    _rounds_whole,
    _underflows,
    _narrows,
    _is_near_one,
    _buries,
    _adds_up,
    _rounds,
    _amplifies,
)


def short_name(trace: OpTrace) -> str:
    """Return the name of an op without its dialect."""
    return trace.path.op.name.rpartition(".")[2]


def _format(t: OpTrace) -> str:
    return np.dtype(t.path.op.results[0].type.dtype).name


def _end(t: OpTrace) -> str:
    return f"{short(largest_of(_format(t)))}, the largest number of {_format(t)}"
