"""Rules about control flow, reductions, windows and sorting.

The abbreviated sources are JK, the known issues of JAX on Neuron; RN-CC, the compiler's
list of supported operators with its footnotes; and ERR, the compiler's error codes.
"""

from __future__ import annotations

from neuronjax.diagnostics.facts import is_integer
from neuronjax.diagnostics.op_contexts import OpContext, branch_taken
from neuronjax.diagnostics.rule import Answer, Verdict, read_rules
from neuronjax.ir.program import Op, Region

_LISTED_BODIES = ("add", "multiply", "minimum", "maximum")
_LOGICAL_BODIES = ("and", "or", "xor")


def combiner_of(region: Region) -> str | None:
    """Return the name of the op if `region` is one op of its two arguments, or None."""
    if len(region.ops) != 1 or len(region.arguments) != 2:
        return None
    (op,) = region.ops
    plain = op.results == region.results and set(op.operands) == set(region.arguments)
    return op.name.removeprefix("stablehlo.") if plain else None


def _body(context: OpContext) -> Answer:
    if len(context.op.results) > 1:
        return False
    name = combiner_of(context.op.regions[0])
    if name in _LOGICAL_BODIES:
        return Verdict(f"the compiler's list of reductions lacks '{name}'", "info")
    return name not in _LISTED_BODIES


def _comparator(context: OpContext) -> Answer:
    region = context.op.regions[0]
    root = next((op for op in region.ops if region.results[0] in op.results), None)
    direction = root.attributes.get("comparison_direction") if root else None
    return direction not in ("LE", "GE", "LT", "GT")


def _topk_integers(context: OpContext) -> Answer:
    type = context.op.operands[0].type
    return is_integer(type.dtype) and type.dtype.itemsize >= 4 and str(type.dtype)


def _skips(op: Op, *names: str) -> bool:
    return all(any(d > 1 for d in op.attributes.get(n) or ()) for n in names)


RULES = read_rules(
    """
dynamic-while: error in while
a loop whose number of iterations is known only at run time
> lax.scan or fori_loop with constant bounds; mask iterations that should do nothing
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
> reduce with jnp.min, max, sum or prod; on 0 and 1, max is any, and min is all
[RN-CC, Supported Operators, footnote 4]

reduction-init: warning in reduce
a reduction that starts from a value computed in the program
> reduce from a constant, and combine the result with the value afterwards
[RN-CC, Supported Operators, footnote 4]

sort-comparator: error in sort
a sort whose comparator is more than one <, <=, > or >=
> sort by one key (jnp.sort, jnp.argsort); combine several keys into one
[JK: sort only with LE, GE, LT, GT]

topk-integer: error in top_k
top_k of integers of 32 or more bits is not supported
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
> dilate one of them before, with lax.pad (interior padding)
[ERR/EVRF010]

convolution-stride: error in convolution
a strided convolution with a dilated input
> convolve without stride and take every n-th result
[ERR/EVRF011]
""",
    {
        "dynamic-while": lambda c: c.loop is None,
        "traced-cond": lambda c: branch_taken(c.op, c.fact(c.op.operands[0])) is None,
        "variadic-reduction": lambda c: (
            len(c.op.results) > 1 and f"{len(c.op.results)} tensors at once"
        ),
        "reduction-body": _body,
        "reduction-init": lambda c: any(
            c.fact(v).value is None for v in c.op.operands[len(c.op.operands) // 2 :]
        ),
        "sort-comparator": _comparator,
        "topk-integer": _topk_integers,
        "window-dilation": lambda c: " and ".join(
            n for n in ("base_dilations", "window_dilations") if _skips(c.op, n)
        ),
        "window-operands": lambda c: (
            len(c.op.operands) != 2 and f"{len(c.op.operands)} operands instead of 2"
        ),
        "convolution-dilations": lambda c: _skips(c.op, "lhs_dilation", "rhs_dilation"),
        "convolution-stride": lambda c: _skips(c.op, "lhs_dilation", "window_strides"),
    },
)
