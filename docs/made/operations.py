"""Which StableHLO and CHLO ops are emulated, on which engines, with which dtypes.

One row per op of both dialects. The status is read from the lowering's own tables;
engines, labels and dtypes come from lowering a sample program (`operation_samples`), so
that the table cannot disagree with the emulator. Nothing is run.
"""

from __future__ import annotations

import dataclasses
import json
import warnings

from docs.made.collective_samples import SAMPLES
from docs.made.operation_samples import KIND_DTYPES, Build, program
from neuronjax.errors import IntegersInFP32Warning, NeuronJaxError, UnimplementedError
from neuronjax.hardware import resolve_target
from neuronjax.lowering import lower
from neuronjax.lowering.refused import REFUSED
from neuronjax.lowering.registry import RULES
from neuronjax.policy import Policy
from neuronjax.report.operations import KINDS, Operation, Status, Use

# Ops that are no computation of their own.
STRUCTURE = {"stablehlo.return": "ends a region"}
_NOTES = {
    "stablehlo.custom_call": "runs __op$block_scaled_dot, QuantizeMX and linear "
    "algebra; other targets are refused",
    "stablehlo.composite": "runs the ops of its decomposition",
    "stablehlo.reshape": "needs no instruction if only the view changes",
    "stablehlo.while": "runs the body's instructions in one loop",
}
_STABLEHLO = """
abs add after_all all_gather all_reduce all_to_all and async_done async_start atan2
batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert broadcast
broadcast_in_dim case cbrt ceil cholesky clamp collective_broadcast collective_permute
collective_reduce compare complex composite concatenate constant convert convolution
cosine count_leading_zeros create_token cross-replica-sum custom_call divide dot
dot_general dynamic_broadcast_in_dim dynamic_conv dynamic_gather dynamic_iota
dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice einsum exponential
exponential_minus_one fft floor gather get_dimension_size get_tuple_element if imag
infeed iota is_finite log log_plus_one logistic map maximum minimum multiply negate not
optimization_barrier or outfeed pad partition_id popcnt power real real_dynamic_slice
recv reduce reduce_precision reduce_scatter reduce_window remainder replica_id reshape
return reverse rng rng_bit_generator round_nearest_afz round_nearest_even rsqrt scatter
select select_and_scatter send set_dimension_size shift_left shift_right_arithmetic
shift_right_logical sign sine slice sort sqrt subtract tan tanh torch_index_select
transpose triangular_solve tuple unary_einsum uniform_dequantize uniform_quantize while
xor
"""
_CHLO = """
_asin_acos_kernel acos acosh asin asinh atan atanh bessel_i1e broadcast_add
broadcast_and broadcast_atan2 broadcast_compare broadcast_complex broadcast_divide
broadcast_maximum broadcast_minimum broadcast_multiply broadcast_next_after broadcast_or
broadcast_polygamma broadcast_power broadcast_remainder broadcast_select
broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical
broadcast_subtract broadcast_xor broadcast_zeta conj constant constant_like cosh digamma
erf erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma mulhi next_after polygamma
ragged_dot scan sinh square tan top_k zeta
"""
NAMES = (
    *(f"stablehlo.{name}" for name in _STABLEHLO.split()),
    *(f"chlo.{name}" for name in _CHLO.split()),
)
"""Every op of both dialects, in jaxlib 0.10 to 0.12."""

_TARGET, _MX_TARGET = "trn2", "trn3"


def operations() -> tuple[Operation, ...]:
    """Return the whole table, in the order of the dialects."""
    return tuple(map(_operation, NAMES))


def _operation(name: str) -> Operation:
    if name in STRUCTURE:
        return Operation(name=name, status="emulated", note=STRUCTURE[name])
    if name in REFUSED:
        refusal = REFUSED[name]
        missing = issubclass(refusal.error, UnimplementedError)
        return Operation(
            name=name, status="missing" if missing else "refused", note=refusal.reason
        )
    if name in SAMPLES:
        return _sampled(name)
    status: Status = "emulated" if name in RULES else "missing"
    return Operation(name=name, status=status)


def _sampled(name: str) -> Operation:
    kinds, build = SAMPLES[name]
    found = {_KIND_NAMES[kind]: _use(name, build, kind) for kind in kinds}
    uses = {kind: use for kind, use in found.items() if use is not None}
    status: Status = "emulated" if uses else "missing"
    return Operation(name=name, status=status, uses=uses, note=_NOTES.get(name, ""))


_KIND_NAMES = dict(zip("fibc", KINDS, strict=True))


def _use(name: str, build: Build, kind: str) -> Use | None:
    """What a sample is lowered to, or None where the emulator refuses it."""
    target = _MX_TARGET if name == "stablehlo.custom_call" else _TARGET
    sample = program(build, name, KIND_DTYPES[kind])
    try:
        with warnings.catch_warnings():
            # A sum of integers over devices says that a chip adds them in FP32.
            warnings.simplefilter("ignore", IntegersInFP32Warning)
            lowered = lower(sample, target=resolve_target(target), policy=Policy())
    except NeuronJaxError:
        return None
    instructions = tuple(lowered.walk())
    engines = tuple(dict.fromkeys(i.engine for i in instructions))
    labels = {i.label for i in instructions}
    # What is checked on silicon is so for some shapes, and an op is for all.
    is_modelled = labels & {"modelled", "checked on silicon"}
    return Use(engines, "modelled" if is_modelled else "exact")


def as_json() -> str:
    """Return the table as the package carries it, an op a line."""
    rows = (json.dumps(dataclasses.asdict(operation)) for operation in operations())
    return "[\n" + ",\n".join(rows) + "\n]\n"
