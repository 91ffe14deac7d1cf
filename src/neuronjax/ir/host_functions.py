"""JAX primitives that the host computes, by their text in a captured program.

The text describes the primitive ("svd[full_matrices=False, compute_uv=True, ...]");
only the process that captured the program knows the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# The target of the custom calls; the text is their backend_config.
CALL = "neuronjax.host"


@dataclass(frozen=True)
class HostFunction:
    """A function of arrays that returns one array or a list of them."""

    text: str  # the primitive with its parameters; equal texts mean equal functions
    #: Binds the primitive in the surrounding trace.
    call: Callable[..., Any] = field(compare=False, repr=False)
    #: "algebra"; "debug", which looks at values; "callback", any other.
    kind: str = field(default="algebra", compare=False)
    shown: str = field(default="", compare=False)  # its parameters in words
    #: "file:line" of a callback's definition, or "".
    line: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.text.split("[")[0]

    def __str__(self) -> str:
        return self.text


# Text -> the function, and the primitive and parameters it was made from.
_FUNCTIONS: dict[str, tuple[HostFunction, Any]] = {}


def register(
    name: str,
    bind: Callable[..., Any],
    parameters: Mapping[str, Any],
    *,
    kind: str = "algebra",
    shown: str = "",
    line: str = "",
) -> str:
    """Return the text for a primitive, `bind(*arrays, **parameters)`, with parameters
    that are comparable by ==. If `shown` is "", all parameters are shown."""
    made_of = (bind, dict(parameters))
    given = ", ".join(f"{k}={v}" for k, v in parameters.items())
    text = f"{name}[{shown or given}]"
    # Parameters that print alike need not be equal.
    while text in _FUNCTIONS and _FUNCTIONS[text][1] != made_of:
        text += "'"
    if text not in _FUNCTIONS:
        call = lambda *arrays: bind(*arrays, **parameters)  # noqa: E731
        function = HostFunction(text, call, kind, shown or given, line)
        _FUNCTIONS[text] = (function, made_of)
    return text


def find(text: str) -> HostFunction | None:
    """Return a text's function, or None if another process captured the program."""
    function, _ = _FUNCTIONS.get(text, (None, None))
    return function
