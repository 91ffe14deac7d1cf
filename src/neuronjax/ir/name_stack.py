"""Read from a JAX name stack the parts that a model's author named.

`jit(step)/transpose(jvp(mlp))/dot_general` is an op of "mlp". The last part is the
primitive. `jit(f)`, `while/body`, `closed_call` and an einsum's formula are JAX's own
parts; "eqx.nn.Linear" is the name of a class, which all its instances share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

_TRANSFORMED = re.compile(
    r"(?:transpose|jvp|vmap|checkpoint|rematted_computation)\((.*)\)"
)
_JAX_PREFIXES = ("jit(", "pjit(", "neuronjax.policy.")
_JAX_NAMES = frozenset(
    """while body cond closed_call core_call eval_jaxpr checkpoint remat remat2
    rematted_computation scan custom_jvp_call custom_vjp_call custom_lin shard_map pjit
    main ~""".split()
)
_BRANCH = re.compile(r"branch_\d+_fun")
_EINSUM = "->"


class NameStack(NamedTuple):
    """The author's parts of a name stack."""

    #: The names of modules and `jax.named_scope`s, the outermost first.
    names: tuple[str, ...]
    classes: tuple[str, ...]  # parts with a dot, which name a class ("eqx.nn.Linear")


@cache
def read_name_stack(scope: str) -> NameStack:
    """Return the author's parts of a name stack, without the primitive."""
    # The last part is the primitive, or for a call the callee, such as the part
    # "jvp(jit(tril))" of "jit(step)/jvp(jit(tril))".
    parts = [*_components(scope)][:-1]
    bare = [name for part in parts for name in _bare(part).split("/")]
    own = [name for name in bare if name and not _is_jax_own(name)]
    classes = tuple(name for name in own if "." in name)
    return NameStack(tuple(n for n in own if "." not in n), classes)


def _components(scope: str) -> Iterator[str]:
    """Yield the parts of a name stack; slashes in brackets do not separate parts."""
    part, depth = "", 0
    for character in scope:
        depth += (character == "(") - (character == ")")
        if character == "/" and depth == 0:
            yield part
            part = ""
        else:
            part += character
    yield part


def _bare(part: str) -> str:
    while match := _TRANSFORMED.fullmatch(part):
        part = match[1]
    return "" if part.startswith(_JAX_PREFIXES) else part


def _is_jax_own(name: str) -> bool:
    return (
        name in _JAX_NAMES
        or name.startswith(_JAX_PREFIXES)
        or _EINSUM in name
        or bool(_BRANCH.fullmatch(name))
    )
