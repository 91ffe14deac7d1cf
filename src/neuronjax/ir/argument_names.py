"""The role of a program's argument by its pytree path, and the module it belongs to.

"params/blocks/0/attn/q/kernel/value" is a parameter of "blocks/0/attn/q". The moments
of an optimizer, "opt/0/mu/blocks/0/attn/q/kernel/value", belong to that module too.
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
# Names of containers that hold the parameters of a whole model.
_COLLECTIONS = frozenset(("param", "params", "parameters", "weights", "variables"))
# Names that Flax NNX gives the array of a variable.
_WRAPPERS = frozenset(("value", "raw_value"))


def is_state_name(name: str) -> bool:
    """Return whether a path is that of an optimizer's state."""
    return bool(_STATE.search(name))


def is_parameter_name(name: str) -> bool:
    """Return whether a path is that of a parameter."""
    return not is_state_name(name) and bool(_PARAMETERS.search(name))


def modules_of_arguments(names: Sequence[str]) -> Mapping[str, str]:
    """Return the module of every argument that is a parameter or optimizer state."""
    modules = _without_place(
        {name: module_of_path(name) for name in parameters_of(names)}
    )
    suffixes = {s: modules[name] for name in modules for s in _suffixes(name)[1:]}
    for name in filter(is_state_name, names):
        same = (suffixes[s] for s in _suffixes(name)[1:] if s in suffixes)
        module = next(same, None)
        if module is not None:
            modules[name] = module
    return modules


def _without_place(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the modules without the position of the model in a tuple of states. If an
    argument holds only the model, "0/layers/1" becomes "layers/1"."""
    heads: dict[str, set[str]] = {}
    for name, module in modules.items():
        if is_parameter_name(name):
            heads.setdefault(_first(name), set()).add(_first(module))
    places = {
        argument: min(inside)
        for argument, head in heads.items()
        if len(inside := head - {argument}) == 1 and min(inside).isdigit()
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
    """Return the paths of parameters: those with a parameter's name, and all other
    paths in the same containers, or in a container that has the paths of an optimizer's
    moments. Paths of states are left out."""
    names = list(names)
    moments = {name[match.end() :] for name in names if (match := _MOMENT.search(name))}
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
    """Return the path of the container of `name` and all parameters, or None."""
    parts = name.split("/")
    inside = [n for n, part in enumerate(parts[:-1]) if part in _COLLECTIONS]
    if inside:
        return "/".join(parts[: inside[-1] + 1])
    return parts[0] if len(parts) > 1 else None


def module_of_path(name: str) -> str:
    """Return the path of a parameter without its leaf and without the container
    ("params"). If no name is left, the container is kept: "params/0" for "params/0/w",
    and the whole path for "params/w"."""
    parts = name.split("/")
    if len(parts) > 1 and parts[-1] in _WRAPPERS:
        parts = parts[:-1]
    held = 1 + max(
        (n for n, part in enumerate(parts[:-1]) if part in _COLLECTIONS), default=0
    )
    inside = parts[held:-1]
    if all(part.isdigit() for part in inside):  # no name, or only positions in lists
        return "/".join(parts[: max(len(parts) - 1, 2)] if inside else parts)
    return "/".join(inside)


def _suffixes(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[n:]) for n in range(len(parts))]
