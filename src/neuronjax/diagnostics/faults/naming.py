"""What a fault is called, what was seen of it, and what to try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.diagnostics.faults.evidence import OpEvidence, flattened
from neuronjax.diagnostics.faults.judgement import HOPELESS, UNSEEN
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.recorder import OpTrace
from neuronjax.diagnostics.faults.search import Suspect
from neuronjax.diagnostics.faults.traits import buries, cast_limit, largest_operand
from neuronjax.execution.probes.signs import (
    FEW,
    MOSTLY,
    SINGULAR,
    absorption_kind,
    nonfinite_kind,
)
from neuronjax.numerics.float_format import FORMATS, get_format

#: What is wrong -> what to try.
KINDS: Mapping[str, str] = {
    "overflow": "subtract the maximum or scale before it; or keep it in FP32 or BF16",
    "underflow": "work with logarithms, or scale before it; FP32 and BF16 reach lower",
    "non-finite": "guard the operand with jnp.where before it, not its result after",
    "absorption": "keep the sum in FP32, or round it stochastically",
    "stagnation": "accumulate in FP32, or add in blocks",
    "cancellation": "rewrite the difference: centred, expm1, log1p, or a product",
    "singular": "keep away from the singular point: an epsilon inside, or a "
    "function made for it (log1p, logsumexp, arctan2)",
    "integer": "use a wider integer, and no float on its way",
    "saturation": "scale to the largest number of the format, or give the layer more "
    "digits by a Rule",
    "coarse": "keep it in FP32 up to there: the format has not the digits",
    "other": "compare this op alone",
}
#: What to try where FP32 has no more range, or digits, already.
IN_FP32: Mapping[str, str] = {
    "overflow": "subtract the maximum or scale before it",
    "underflow": "work with logarithms, or scale before it",
    "absorption": "add what is small first, or carry along what a sum rounds away",
    "stagnation": "add in blocks, or carry along what a sum rounds away",
}
_OF_RANGE = frozenset(("overflow", "underflow"))
#: What to try where a narrower float indexes or counts.
WHOLE_IN_FP32 = "keep positions and counts as integers, or in FP32"
#: What to try where a policy's cast does.
OUT_OF_MATMUL = "keep them out of the matmul: multiply elementwise, or by a Rule with "
OUT_OF_MATMUL += 'auto_cast="none" there'
#: What to try where an epsilon is zero.
LOST_GUARD = "an epsilon of the format (1e-4 in float16), or add it in float32"
#: What to try where a constant is another number.
MISREAD = "a constant that the format holds, or apply it in float32"
_SUMS = frozenset(("reduce", "reduce_window"))
#: A sum that is so many times its addend absorbs a part of it; among equals it is an
#: ordinary rounding.
LARGER = 4.0
_DIFFERENCES = frozenset(("subtract", "add", "reduce", "dot_general", "convolution"))


@dataclass(frozen=True)
class FaultName:
    """A kind, what was seen, and what to try if not what its kind says."""

    kind: str
    evidence: str
    advice: str = ""

    @property
    def remedy(self) -> str:
        """What to try."""
        return self.advice or KINDS[self.kind]


def named(suspect: Suspect) -> FaultName:
    """The kind of a fault, from what was seen of the op."""
    trace = suspect.trace
    moment = trace.first or trace.made_nonfinite
    evidence = moment[2] if moment else trace.worst
    for rule in _RULES:
        found = rule(suspect, trace, evidence)
        if found is not None:
            return _advised(found, trace)
    if suspect.amplifier is not None and trace.own > UNSEEN:
        return FaultName("coarse", f"relative error {_figure(trace.own)} of its own")
    error = _figure(evidence.result.error)
    return FaultName("other", f"relative error {error}")


def _advised(name: FaultName, trace: OpTrace) -> FaultName:
    """With a remedy that says nothing of FP32 to what is in it, or reaches as far."""
    names = [np.dtype(v.type.dtype).name for v in trace.path.op.results]
    if trace.cast is not None:
        names += [trace.cast.format, trace.cast.sums]
    bits = "exponent_bits" if name.kind in _OF_RANGE else "mantissa_bits"
    found = [getattr(get_format(n), bits) for n in names if n in FORMATS]
    if name.advice or min(found, default=0) < getattr(get_format("float32"), bits):
        return name
    return replace(name, advice=IN_FP32.get(name.kind, ""))


def _wraps(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    count = t.wrapped or t.misread
    if not count:
        return None
    dtype = t.path.op.results[0].type.dtype
    what = "numbers" if _short(t) == "convert" else "sums or products"
    return FaultName("integer", f"{count} {what} beyond {dtype.name}")


def _rounds_whole(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    """Identifiers, counts and keys."""
    if not t.rounds_whole:
        return None
    held, of, advice = _format(t), e.result.largest, _of_whole(e)
    if t.cast is not None and of * unit_of(held) < 1:
        held, of, advice = t.cast.format, largest_operand(e), OUT_OF_MATMUL
    unit, largest = unit_of(held), _figure(of)
    if not unit:
        return FaultName("integer", f"integers up to {largest}, computed in FP32")
    text = f"whole numbers up to {largest}; {held} holds them to {1 / unit:.0f}"
    return FaultName("integer", text, advice)


def _of_whole(e: OpEvidence) -> str:
    """What to try with whole numbers, if FP32 holds them."""
    return WHOLE_IN_FP32 if e.result.largest <= 2.0**24 else ""


def _overflows(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    """A number that the format cannot hold, or an Inf out of finite numbers."""
    share, fmt = e.result, _format(t)
    if not share.beyond or share.nonfinite == 0:
        return None
    should = f"should be {_figure(share.largest)}"
    is_finite = not any(x.nonfinite for x in e.operands.values())
    if share.nonfinite_reference and is_finite:
        should = "is beyond float64's too"
    text = f"{_share(share.beyond)} beyond {fmt}'s {_figure(_largest(t))}; the largest "
    return FaultName("overflow", text + should)


def _misreads(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if s.misread is None:
        return None
    kind = {math.inf: "overflow", 0.0: "underflow"}.get(s.misread.held, "coarse")
    return FaultName(kind, str(s.misread), MISREAD)


def _is_unguarded(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not s.lost_guard:
        return None
    text = f"{s.lost_guard}; {e.result.nonfinite} of {e.result.elements} are Inf or NaN"
    return FaultName("singular", text, LOST_GUARD)


def _makes_nonfinite(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    share = e.result
    operands = e.operands.values()
    if share.nan and any(x.nonfinite and not x.nan for x in operands):
        return FaultName(
            "non-finite", f"{share.nan} of {share.elements} are NaN, of Inf"
        )
    if not share.nonfinite or any(x.nonfinite for x in operands):
        return None
    counts = [("NaN", share.nan), ("Inf", share.nonfinite - share.nan)]
    (name, count), *others = [(name, n) for name, n in counts if n]
    text = f"{count} of {share.elements} are {name}"
    text += "".join(f", {n} {name}" for name, n in others) + ", of finite operands"
    if share.nonfinite_reference == share.nonfinite:
        text += "; in float64 too"
    return FaultName(nonfinite_kind(_short(t), share.nan > 0), text)


def _overflows_in_cast(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    """An operand of a contraction that the policy casts to what cannot hold it."""
    if t.cast is None or not e.result.nonfinite:
        return None
    if any(x.nonfinite for x in e.operands.values()):
        return None
    largest, limit, name = largest_operand(e), cast_limit(t), t.cast.format
    if largest <= limit:
        return None
    text = f"an operand reaches {_figure(largest)}, {name} ends at {_figure(limit)}"
    return FaultName("overflow", text)


def _bounds(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    """A bound before a cast, or on the scale of one."""
    if s.bounding is None:
        return None
    e = s.bounding
    operands = e.operands.values()
    if not e.cut_off:
        text = f"{_share(flattened(e))} became zero: the scale is not theirs"
        return FaultName("coarse", text)
    largest = _figure(max(x.largest for x in operands))
    text = f"{largest} is bounded to {_figure(min(e.result.largest, _largest(t)))}"
    return FaultName("saturation", text)


def _saturates(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    share = e.result
    if not share.clipped:
        return None
    text = f"{_share(share.clipped)} clipped at {_figure(_largest(t))}"
    return FaultName("saturation", text)


def _absorbs(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not t.absorbs:
        return None
    text = f"{_share(t.absorbed[0])} of the sums are their larger addend"
    if s.is_inverted:  # as in a sigmoid, whose neighbours are then one number
        return FaultName("coarse", text)
    return FaultName(absorption_kind(s.is_running), text)


def _loses_update(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if not s.is_update:
        return None
    return FaultName(
        "absorption", "the step is smaller than half a roundoff of the state"
    )


def _underflows(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    gone = t.zeros or (e.result.nothing if s.amplifier else 0.0)
    difference = _short(t) in ("subtract", "add", "reduce")
    breaks = s.amplifier is not None and s.amplifier.made_nonfinite is not None
    if gone < (0 if breaks else FEW) or (s.role == "amplifies" and t.beneath):
        return None
    if not gone or not (difference or t.beneath or _short(t) == "exponential"):
        return None
    text = f"{_share(gone)} became zero in {_format(t)}"
    difference = difference and not t.beneath
    return FaultName("cancellation" if difference else "underflow", text)


def _narrows(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    """A cast whose rounding another op amplifies."""
    if _short(t) != "convert":
        return None
    source = t.path.op.operands[0].type.dtype
    text = f"{_format(t)} keeps it to {_figure(e.result.error)}"
    if s.amplifier is not None:
        text += f", {_short(s.amplifier)} {_makes(s.amplifier)}"
    if source.kind in "iu":
        return FaultName("integer", text, _of_whole(e))
    return FaultName("coarse", text)


def _makes(t: OpTrace) -> str:
    """What an op does with an error that is small yet."""
    if t.first is None and t.made_nonfinite is None:
        return "chooses by it"
    shown = math.inf if t.first is None else t.first[2].result.error
    return f"makes {_figure(shown) if math.isfinite(shown) else 'Inf or NaN'} of that"


def _amplifies(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    operand = max((x.error for x in e.operands.values()), default=0.0)
    if e.own >= e.result.error or operand >= e.result.error:
        return None
    text = f"relative error {_figure(operand)} in, {_figure(e.result.error)} out"
    if _short(t) in SINGULAR:
        return FaultName("singular", text)
    if _short(t) in _DIFFERENCES and not _grows(t, e):
        return FaultName("cancellation", text)
    return FaultName("coarse", text)


def _grows(t: OpTrace, e: OpEvidence) -> bool:
    """Whether a sum of two is larger than both, so that nothing cancels."""
    addends = [x.norm for x in e.operands.values()]
    return _short(t) in ("add", "subtract") and e.result.norm > max(addends)


def _buries(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    """A sum that rounds away much of its smaller addend."""
    if s.role != "makes" or _short(t) not in ("add", "subtract"):
        return None
    lost = buries(t, e)
    if lost < LARGER * e.own:
        return None
    return FaultName("absorption", f"its rounding is {_figure(lost)} of an addend")


def _rounds(s: Suspect, t: OpTrace, e: OpEvidence) -> FaultName | None:
    if e.own < e.result.error / 2:
        return None
    text = f"relative error {_figure(e.own)} of its own"
    if _short(t) in _SUMS:
        return FaultName("stagnation", text)
    if t.cast is not None:
        sums = unit_of(t.cast.sums)
        if sums >= t.cast.unit:
            text = f"partial sums in {t.cast.sums}, {text}"
            return FaultName("stagnation", text)
        largest, limit = largest_operand(e), cast_limit(t)
        if largest > limit and e.own > HOPELESS:
            what = f"{_figure(largest)} clipped at {_figure(limit)}"
            return FaultName("saturation", f"{what} by the cast, {text}")
        lost = max(e.result.lost, e.result.zeros)
        if lost:
            text += f", {_share(lost)} lost"
        return FaultName("underflow" if lost > FEW else "coarse", text)
    if e.result.beneath > MOSTLY:
        what = f"{_share(e.result.beneath)} below {_format(t)}'s normal numbers"
        return FaultName("underflow", f"{what}, {text}")
    return FaultName("coarse", text)


_RULES = (
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
    _buries,
    _rounds,
    _amplifies,
)


def _short(t: OpTrace) -> str:
    return t.path.op.name.rpartition(".")[2]


def _format(t: OpTrace) -> str:
    return np.dtype(t.path.op.results[0].type.dtype).name


def _largest(t: OpTrace) -> float:
    name = _format(t)
    return get_format(name).max_finite if name in FORMATS else math.inf


def _figure(x: float) -> str:
    return f"{x:.2g}"


def _share(x: float) -> str:
    return f"{100 * x:.2g} %" if x < 0.995 else "100 %"
