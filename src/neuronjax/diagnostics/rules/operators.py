"""Rules about single operators: random numbers, powers, precision, custom calls.

`LISTED` is the list of operators in the compiler's documents, in StableHLO's names. The
list is stale (it lacks sorting, loops and convolution, which other documents describe).
So an operator outside the list gives an info, or a warning if no document mentions it.
"""

from __future__ import annotations

import re

import numpy as np

from neuronjax.diagnostics.op_contexts import OpContext
from neuronjax.diagnostics.rule import Answer, Verdict, read_rules
from neuronjax.ir import host_functions, kernel_call
from neuronjax.lowering.refused import REFUSED
from neuronjax.lowering.registry import RULES as LOWERING_RULES

LISTED = frozenset(
    """
    abs add all_gather all_reduce and atan2 batch_norm_grad batch_norm_inference
    batch_norm_training bitcast_convert broadcast broadcast_in_dim ceil clamp
    compare concatenate constant convert cosine custom_call divide dot dot_general
    dynamic_update_slice exponential floor gather get_tuple_element iota log maximum
    minimum multiply negate not pad power reduce reshape reverse rng
    rng_bit_generator rsqrt scatter select select_and_scatter shift_right_logical
    sign sine slice sqrt subtract tanh transpose tuple
    """.split()
)
NOWHERE = frozenset(
    {"cholesky", "fft", "triangular_solve", "all_to_all", "collective_permute"}
)
# Control flow, structure, and ops with another rule are not reported as unlisted.
_NO_OPERATORS = frozenset(
    {"case", "composite", "if", "optimization_barrier", "reduce_precision", "while"}
)
_UNKNOWN_REMEDY = "compute it on the host: no document of the vendor mentions this op"


def _unlisted(context: OpContext) -> Answer:
    dialect, _, name = context.op.name.partition(".")
    if dialect != "stablehlo" or name in LISTED | _NO_OPERATORS or name in _REFUSALS:
        return False
    if name in NOWHERE:
        return Verdict(severity="warning", remedy=_UNKNOWN_REMEDY)
    return True


_REFUSALS = {name.removeprefix("stablehlo.") for name in REFUSED}


def _exponent(context: OpContext) -> Answer:
    exponent = context.fact(context.op.operands[1]).scalar
    if exponent is None:
        return "a variable exponent"
    whole = float(exponent) == np.rint(float(exponent))
    return None if whole else f"exponent {float(exponent):g}"


_PRECISION = re.compile(r"(lhs|rhs)_precision_type = (\w+)")
_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}


def _algorithm(context: OpContext) -> Answer:
    """Return "asks for f32, gets bf16" if no operand has the requested dtype."""
    asked = _PRECISION.findall(context.op.attributes.get("algorithm") or "")
    dtypes = [v.type.dtype.name for v in context.op.operands]
    held = {_SHORT.get(name, name) for name in dtypes}
    other = sorted({name for _, name in asked} - held)
    return f"asks for {other[0]}, gets {dtypes[0]}" if other else None


def _precision(context: OpContext) -> Answer:
    """Return "asks for HIGHEST" if casts may ignore this requested precision."""
    policy, attributes = context.settings.policy, context.op.attributes
    asked = {"HIGH", "HIGHEST"}.intersection(attributes.get("precision_config", ()))
    may_ignore = policy.auto_cast != "none" and policy.dot_precision != "obeyed"
    return f"asks for {max(asked)}" if asked and may_ignore else None


# Custom calls that the compiler knows, or that are removed before the compiler starts.
KNOWN_CALLS = frozenset(
    {
        "QuantizeMX",
        "__op$block_scaled_dot",
        "AwsNeuronCustomNativeKernel",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
    }
)


def _custom_call(context: OpContext) -> Answer:
    name = context.op.attributes["call_target_name"]
    known = name in (*KNOWN_CALLS, host_functions.CALL, kernel_call.CALL)
    return None if known else repr(name)


_CALLBACK = re.compile("debug_print|.*callback")


def _left_to_host(context: OpContext, *, is_callback: bool) -> str:
    """Return the name of the JAX primitive that a custom call runs on the host: of a
    callback if `is_callback`, of another primitive otherwise; "" if there is none."""
    if context.op.attributes["call_target_name"] != host_functions.CALL:
        return ""
    name = str(context.op.attributes.get("backend_config", "")).partition("[")[0]
    return name if bool(_CALLBACK.fullmatch(name)) == is_callback else ""


def _calls(pattern: str, context: OpContext) -> bool:
    callee = str(context.op.attributes.get("callee", ""))
    return re.fullmatch(rf"_?{pattern}(_\d+)?", callee) is not None


def _threefry(context: OpContext) -> Answer:
    if not _calls("threefry(2x32|4x32|_2x32)", context):
        return False
    draws = (op.name for op in context.settings.program.walk())
    # JAX splits a key of "rbg", and folds data into it, by threefry on half keys.
    return "stablehlo.rng_bit_generator" not in draws or Verdict(
        "threefry is only used to derive keys of rbg (split, fold_in, Flax's Rngs)",
        remedy='jax.random.key(seed, impl="unsafe_rbg"), which needs no threefry, or '
        "derive keys outside the program",
    )


def _unimplemented(context: OpContext) -> Answer:
    name = context.op.name
    if refusal := REFUSED.get(name):
        return Verdict(refusal.reason, remedy=refusal.remedy)
    values = (*context.op.operands, *context.op.results)
    rewritten = any(value.type.dtype.kind == "c" for value in values)
    return None if name in LOWERING_RULES or rewritten else "no rule"


RULES = read_rules(
    """
threefry: warning in call
the threefry generator is incomplete
> jax.random.key(seed, impl="rbg"), or jax_default_prng_impl="rbg"
[JK: threefry incomplete]

randint: warning in call
jax.random.randint has a wrong distribution
> draw the integers outside the program, or floor(uniform * n)
[JK: randint]

rng-seed: warning in rng_bit_generator
rng_bit_generator ignores the seed that the program gives it
> if all runs must be the same, pass random numbers as arguments
[RN-CC, Supported Operators, footnote 5]

power-exponent: warning in power
a power whose exponent is no integer constant
> x ** n with a Python integer, or exp(y * log(x)) for x > 0
[RN-CC, Supported Operators, footnote 3]

reduce-precision: error in reduce_precision
lax.reduce_precision is not supported
> a cast to the narrower dtype and back
[JK: no reduce_precision]

dot-algorithm: warning in dot_general
a dot computes in the dtype of its operands; the requested algorithm is not always
respected
> cast the operands to that dtype
[JK: lax.DotAlgorithmPreset]

dot-precision: warning in dot_general, convolution
the compiler's flags decide what is cast, and no document says that the compiler
reads the precision of an op
> change nothing; dot_precision="obeyed" shows the results if the compiler reads it
[RN-CC, --auto-cast]

custom-call: error in custom_call
a custom call that the compiler does not know
> write it with JAX operations, or compute it on the host
[ERR/EVRF015, EHCA005]

linear-algebra: error in custom_call
linear algebra that JAX lowers for CPU, GPU and TPU only
> compute it on the host; neuronjax runs it on the host too, if the policy has
host_custom_calls
[JAX: no lowering for platform neuron]

host-callback: error in custom_call
a callback is impossible: a NeuronCore cannot call the host
> return the values, and print or process them outside the program; neuronjax runs
jax.debug, and other callbacks if the policy has callbacks="host"
[JK: host callbacks]

unlisted-operator: info per program
not in the compiler's list of operators (which is outdated)
> nothing, unless the compiler refuses it (EVRF001, EUOC002)
[RN-CC, Supported Operators]

not-emulated: error
neuronjax does not run this op
> rewrite the line with other operations
[neuronjax ops]
""",
    {
        "threefry": _threefry,
        "randint": lambda c: _calls("randint", c),
        "rng-seed": lambda c: True,
        "power-exponent": _exponent,
        "reduce-precision": lambda c: True,
        "dot-algorithm": _algorithm,
        "dot-precision": _precision,
        "custom-call": _custom_call,
        # The host runs the ops of these two rules: JAX cannot lower them for the chip.
        "linear-algebra": lambda c: _left_to_host(c, is_callback=False),
        "host-callback": lambda c: _left_to_host(c, is_callback=True),
        "unlisted-operator": _unlisted,
        "not-emulated": _unimplemented,
    },
)
