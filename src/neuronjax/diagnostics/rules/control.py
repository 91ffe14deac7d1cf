"""Rules about control flow, reductions, windows and sorting.

Sources: JK, the known issues of JAX on Neuron; RN-CC, the compiler's list of supported
operators with its footnotes; ERR, the compiler's error codes.
"""

from __future__ import annotations

from neuronjax.diagnostics.facts import is_integer
from neuronjax.diagnostics.op_contexts import OpContext, branch_taken
from neuronjax.diagnostics.rule import YES, Verdict, read_rules
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


RULES = read_rules(
    """
dynamic-while: error in while
a loop whose trip count is not in the program
> lax.scan or fori_loop with constant bounds; mask the trips that should do nothing
[JK: static while_loop only]

traced-cond: error in case, if
a branch that depends on a traced value
> compute both sides and choose with jnp.where, or branch in Python on a static value
[JK: no cond]

variadic-reduction: error in reduce
a reduction of several tensors (argmax and argmin are such)
> for an argmax: jnp.where(x == x.max(axis, keepdims=True), iota, n).min(axis), or
lax.top_k(x, 1)
[JK: no variadic reductions]

reduction-body: error in reduce, reduce_window, all_reduce, reduce_scatter
a reduction other than min, max, add or mul
> reduce with jnp.min, max, sum or prod; any and all as max and min of numbers
[RN-CC, Supported Operators, footnote 4]

reduction-init: warning in reduce
a reduction that starts from a value computed in the program
> reduce from a constant and combine the start afterwards
[RN-CC, Supported Operators, footnote 4]

sort-comparator: error in sort
a sort whose comparator is more than one <, <=, > or >=
> sort by one key (jnp.sort, jnp.argsort); fold several keys into one
[JK: sort only with LE, GE, LT, GT]

topk-integer: error in top_k
top_k
> top_k of float32: exact for integers up to 2^24
[ERR/EVRF013]

window-dilation: error in reduce_window
a sliding window with dilation
> take the strided slices first, then reduce without dilation
[ERR/EVRF017, EVRF018]

window-operands: error in reduce_window
a sliding window over several tensors
> reduce one tensor at a time
[ERR/EVRF019]

convolution-dilations: error in convolution
a convolution that dilates both its input and its kernel
> dilate one of them with lax.pad (interior padding) before it
[ERR/EVRF010]

convolution-stride: error in convolution
a strided convolution with a dilated input
> convolve without stride and take every n-th result
[ERR/EVRF011]
""",
    {
        "dynamic-while": _dynamic_while,
        "traced-cond": _traced_branch,
        "variadic-reduction": _variadic,
        "reduction-body": _body,
        "reduction-init": _initial,
        "sort-comparator": _comparator,
        "topk-integer": _topk_integers,
        "window-dilation": _window_dilation,
        "window-operands": _window_operands,
        "convolution-dilations": _both_dilations,
        "convolution-stride": _strided_dilation,
    },
)
