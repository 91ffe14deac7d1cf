"""Rules about control flow, reductions, windows and sorting.

Sources: JK, the known issues of JAX on Neuron; RN-CC, the compiler's list of supported
operators with its footnotes; ERR, the compiler's error codes.
"""

from __future__ import annotations

from neuronjax.diagnostics.facts import is_integer
from neuronjax.diagnostics.op_contexts import OpContext, branch_taken
from neuronjax.diagnostics.rule import YES, PortabilityRule, Verdict, ops
from neuronjax.ir.program import Op, Region


def _dynamic_while(context: OpContext) -> Verdict | None:
    return YES if context.loop is None else None


def _traced_branch(context: OpContext) -> Verdict | None:
    index = context.fact(context.op.operands[0])
    return YES if branch_taken(context.op, index) is None else None


def _variadic(context: OpContext) -> Verdict | None:
    tensors = len(context.op.results)
    return Verdict(f"{tensors} tensors at once") if tensors > 1 else None


_LISTED_BODIES = ("add", "multiply", "minimum", "maximum")
_LOGICAL_BODIES = ("and", "or", "xor")


def combiner_of(region: Region) -> str | None:
    """The one binary op that a region applies to its arguments, or None."""
    if len(region.ops) != 1 or len(region.arguments) != 2:
        return None
    (op,) = region.ops
    plain = op.results == region.results and set(op.operands) == set(region.arguments)
    return op.name.removeprefix("stablehlo.") if plain else None


def _body(context: OpContext) -> Verdict | None:
    if len(context.op.results) > 1:
        return None
    name = combiner_of(context.op.regions[0])
    if name in _LISTED_BODIES:
        return None
    if name in _LOGICAL_BODIES:
        return Verdict(f"'{name}' is not in its list", "info")
    return YES


def _initial(context: OpContext) -> Verdict | None:
    op = context.op
    initial = op.operands[len(op.operands) // 2 :]
    return YES if any(context.fact(v).value is None for v in initial) else None


def _comparator(context: OpContext) -> Verdict | None:
    region = context.op.regions[0]
    root = next((op for op in region.ops if region.results[0] in op.results), None)
    direction = root.attributes.get("comparison_direction") if root else None
    return None if direction in ("LE", "GE", "LT", "GT") else YES


def _topk_integers(context: OpContext) -> Verdict | None:
    type = context.op.operands[0].type
    wide = is_integer(type.dtype) and type.dtype.itemsize >= 4
    return Verdict(f"of {type.dtype}") if wide else None


def _dilated(op: Op, name: str) -> bool:
    return any(d > 1 for d in op.attributes.get(name) or ())


def _window_dilation(context: OpContext) -> Verdict | None:
    names = ("base_dilations", "window_dilations")
    found = [name for name in names if _dilated(context.op, name)]
    return Verdict(" and ".join(found)) if found else None


def _window_operands(context: OpContext) -> Verdict | None:
    count = len(context.op.operands)
    return Verdict(f"{count} operands instead of 2") if count != 2 else None


def _both_dilations(context: OpContext) -> Verdict | None:
    both = _dilated(context.op, "lhs_dilation") and _dilated(context.op, "rhs_dilation")
    return YES if both else None


def _strided_dilation(context: OpContext) -> Verdict | None:
    both = _dilated(context.op, "lhs_dilation") and _dilated(
        context.op, "window_strides"
    )
    return YES if both else None


RULES = (
    PortabilityRule(
        id="dynamic-while",
        severity="error",
        title="a loop whose trip count is not in the program",
        remedy="lax.scan or fori_loop with constant bounds; mask the trips that should "
        "do nothing",
        source="JK: static while_loop only",
        ops=ops("while"),
        check=_dynamic_while,
    ),
    PortabilityRule(
        id="traced-cond",
        severity="error",
        title="a branch that depends on a traced value",
        remedy="compute both sides and choose with jnp.where, or branch in Python on a "
        "static value",
        source="JK: no cond",
        ops=ops("case", "if"),
        check=_traced_branch,
    ),
    PortabilityRule(
        id="variadic-reduction",
        severity="error",
        title="a reduction of several tensors (argmax and argmin are such)",
        remedy="for an argmax: jnp.where(x == x.max(axis, keepdims=True), iota, n)"
        ".min(axis), or lax.top_k(x, 1)",
        source="JK: no variadic reductions",
        ops=ops("reduce"),
        check=_variadic,
    ),
    PortabilityRule(
        id="reduction-body",
        severity="error",
        title="a reduction other than min, max, add or mul",
        remedy="reduce with jnp.min, max, sum or prod; any and all as max and min of "
        "numbers",
        source="RN-CC, Supported Operators, footnote 4",
        ops=ops("reduce", "reduce_window", "all_reduce", "reduce_scatter"),
        check=_body,
    ),
    PortabilityRule(
        id="reduction-init",
        severity="warning",
        title="a reduction that starts from a value computed in the program",
        remedy="reduce from a constant and combine the start afterwards",
        source="RN-CC, Supported Operators, footnote 4",
        ops=ops("reduce"),
        check=_initial,
    ),
    PortabilityRule(
        id="sort-comparator",
        severity="error",
        title="a sort whose comparator is more than one <, <=, > or >=",
        remedy="sort by one key (jnp.sort, jnp.argsort); fold several keys into one",
        source="JK: sort only with LE, GE, LT, GT",
        ops=ops("sort"),
        check=_comparator,
    ),
    PortabilityRule(
        id="topk-integer",
        severity="error",
        title="top_k",
        remedy="top_k of float32: exact for integers up to 2^24",
        source="ERR/EVRF013",
        ops=ops("top_k"),
        check=_topk_integers,
    ),
    PortabilityRule(
        id="window-dilation",
        severity="error",
        title="a sliding window with dilation",
        remedy="take the strided slices first, then reduce without dilation",
        source="ERR/EVRF017, EVRF018",
        ops=ops("reduce_window"),
        check=_window_dilation,
    ),
    PortabilityRule(
        id="window-operands",
        severity="error",
        title="a sliding window over several tensors",
        remedy="reduce one tensor at a time",
        source="ERR/EVRF019",
        ops=ops("reduce_window"),
        check=_window_operands,
    ),
    PortabilityRule(
        id="convolution-dilations",
        severity="error",
        title="a convolution that dilates both its input and its kernel",
        remedy="dilate one of them with lax.pad (interior padding) before it",
        source="ERR/EVRF010",
        ops=ops("convolution"),
        check=_both_dilations,
    ),
    PortabilityRule(
        id="convolution-stride",
        severity="error",
        title="a strided convolution with a dilated input",
        remedy="convolve without stride and take every n-th result",
        source="ERR/EVRF011",
        ops=ops("convolution"),
        check=_strided_dilation,
    ),
)
