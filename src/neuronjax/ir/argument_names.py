"""What an argument of a program is, by its pytree path, and to which module it belongs.

"params/blocks/0/attn/q/kernel/value" is a parameter of "blocks/0/attn/q", and the
moments of an optimizer, "opt/0/mu/blocks/0/attn/q/kernel/value", are that module's too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

_STATE = re.compile(
    r"(^|/)(opt|opt_state|optimizer|optimizer_state|tx_state|mu|nu|momentum|trace"
    r"|count|inner_state)(/|$)|/step(/|$)"
)
_PARAMETERS = re.compile(
    r"(^|/)(params?|parameters|weights?|kernel|bias|embedding|w\d*|b\d*)(/|$)"
)
_MOMENT = re.compile(r"(^|/)(mu|nu|momentum|trace)/")
# What holds the parameters of a whole model.
_COLLECTIONS = frozenset(("param", "params", "parameters", "weights", "variables"))
# What Flax NNX calls the array of a variable.
_WRAPPERS = frozenset(("value", "raw_value"))


def is_state_name(name: str) -> bool:
    """Whether a path is that of an optimizer's state."""
    return bool(_STATE.search(name))


def is_parameter_name(name: str) -> bool:
    """Whether a path is that of a parameter."""
    return not is_state_name(name) and bool(_PARAMETERS.search(name))


def modules_of_arguments(names: Sequence[str]) -> Mapping[str, str]:
    """The module of every argument that is a parameter, or an optimizer's of one."""
    found = _without_place(
        {name: module_of_path(name) for name in parameters_of(names)}
    )
    suffixes = {s: found[name] for name in found for s in _suffixes(name)[1:]}
    for name in filter(is_state_name, names):
        same = (suffixes[s] for s in _suffixes(name)[1:] if s in suffixes)
        module = next(same, None)
        if module is not None:
            found[name] = module
    return found


def _without_place(modules: Mapping[str, str]) -> dict[str, str]:
    """The modules without the place of the model in a tuple of states, where an
    argument holds that one alone: "0/layers/1" is "layers/1"."""
    heads: dict[str, set[str]] = {}
    for name, module in modules.items():
        if is_parameter_name(name):
            heads.setdefault(_first(name), set()).add(_first(module))
    places = {
        argument: min(inside)
        for argument, found in heads.items()
        if len(inside := found - {argument}) == 1 and min(inside).isdigit()
    }
    return {
        name: module.partition("/")[2]
        if _first(module) == places.get(_first(name))
        else module
        for name, module in modules.items()
    }


def _first(path: str) -> str:
    return path.partition("/")[0]


def parameters_of(names: Iterable[str]) -> list[str]:
    """The paths of parameters: that of a norm's scale says so by where it is, and that
    of what an optimizer has moments of by those."""
    names = list(names)
    moments = {name[found.end() :] for name in names if (found := _MOMENT.search(name))}
    roots = {_root(name) for name in names if is_parameter_name(name)} - {None}
    inside: dict[str, set[str]] = defaultdict(set)
    for name in names:
        if not is_state_name(name):
            first, _, rest = name.partition("/")
            inside[first].add(rest)
    roots |= {first for first, held in inside.items() if moments and held == moments}
    return [
        name
        for name in names
        if is_parameter_name(name) or (_root(name) in roots and not is_state_name(name))
    ]


def _root(name: str) -> str | None:
    """What holds a parameter and all others of the model; None of a plain argument."""
    parts = name.split("/")
    inside = [n for n, part in enumerate(parts[:-1]) if part in _COLLECTIONS]
    if inside:
        return "/".join(parts[: inside[-1] + 1])
    return parts[0] if len(parts) > 1 else None


def module_of_path(name: str) -> str:
    """The path of a parameter without its leaf and without what holds them all.

    What has no name of its own keeps what stands before it: "params/w", "params/0"."""
    parts = name.split("/")
    if len(parts) > 1 and parts[-1] in _WRAPPERS:
        parts = parts[:-1]
    held = 1 + max(
        (n for n, part in enumerate(parts[:-1]) if part in _COLLECTIONS), default=0
    )
    inside = parts[held:-1]
    if all(part.isdigit() for part in inside):  # no name, or that of a place in a list
        return "/".join(parts[: max(len(parts) - 1, 2)] if inside else parts)
    return "/".join(inside)


def _suffixes(name: str) -> list[str]:
    """A path and what is left of it from the left, the longest first."""
    parts = name.split("/")
    return ["/".join(parts[n:]) for n in range(len(parts))]
