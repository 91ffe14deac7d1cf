"""Functions with documented signatures, made from data.

`nki.isa` has one function per row of `ir.nki_instructions`, and the older style one
function for each of those. The functions' code is compiled from text, as for data
classes, so that Python binds the arguments of a call and `help` shows the signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neuronjax.ir.nki_spec import InstructionSpec, OperandSpec

_TYPES = {"tensor": "NkiTensor", "number": "float", "flag": "bool"}

# A function of the arguments by name.
Call = Callable[[dict[str, Any]], Any]


def function_of_row(
    spec: InstructionSpec, names: Mapping[str, Any], call: Call
) -> Callable[..., Any]:
    """Return the function of a row; `names` and `call` are those of `function_of`."""
    function = _compiled(spec.name, spec.call, names, call)
    for p in inspect.signature(function).parameters.values():
        function.__annotations__[p.name] = _type(spec.operand(p.name), p.default)
    function.__annotations__["return"] = spec.returns
    return function


def _type(operand: OperandSpec | None, default: Any) -> str:
    if operand is None:
        return "str | None"  # `name`, the label of the instruction
    if operand.or_number:
        return "Any"
    kind = operand.type or _TYPES.get(operand.kind, "Any")
    return f"{kind} | None" if operand.kind == "tensor" and default is None else kind


def function_of(
    name: str,
    parameters: Sequence[inspect.Parameter],
    returns: str,
    names: Mapping[str, Any],
    call: Call,
) -> Callable[..., Any]:
    """Return a function with these parameters, which passes its arguments by name to
    `call`. Types are texts; defaults and types refer to `names`."""
    listed, defaults = [], {}
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and "*" not in listed:
            listed.append("*")
        text = f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name
        if p.default is not p.empty:
            defaults[p.name] = p.default
            text += f"={p.name}"
        listed.append(text)
    function = _compiled(name, ", ".join(listed), {**names, **defaults}, call)
    function.__annotations__ |= {p.name: p.annotation for p in parameters}
    function.__annotations__["return"] = returns
    return function


def _compiled(name: str, parameters: str, names: Mapping[str, Any], call: Call) -> Any:
    # With this file name the code counts as the package's when user_line() looks for
    # the user's line.
    code = compile(f"lambda {parameters}: _call(locals())", __file__, "eval")
    function = eval(code, {**names, "_call": call})
    function.__name__ = function.__qualname__ = name
    return function
