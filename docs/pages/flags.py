"""The words of a policy, and what the vendor's flags and variables are here."""

from __future__ import annotations

from collections.abc import Iterator

from neuronjax.policy.flags import (
    FLAGS,
    IGNORED_VARIABLES,
    UNSUPPORTED_VARIABLES,
    Fields,
    Flag,
)
from neuronjax.policy.values import LEGAL, SDK_DEFAULTS

from .markdown import code, table

_HEADS = ("flag", "value", "effect in neuronjax")
_VARIABLES = {
    "NEURON_CC_FLAGS": "the flags above",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": '`rounding="stochastic"`',
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED": "`seed`",
    "NEURON_LOGICAL_NC_CONFIG": "`lnc`; an error if `--lnc` has another value",
}


def flags_table() -> str:
    """Every flag that `Policy.from_flags` knows, those that change numbers first."""
    setting = [flag for flag in FLAGS if flag.sets]
    refused = [flag for flag in FLAGS if flag.unsupported and not flag.sets]
    rows = [row for flag in (*setting, *refused) for row in _rows(flag)]
    inert = ", ".join(code(f.name) for f in FLAGS if not f.sets and not f.unsupported)
    unused = f"These flags are accepted and do not change numbers: {inert}.\n"
    return f"{table(_HEADS, rows)}\n{unused}"


def _rows(flag: Flag) -> Iterator[tuple[str, str, str]]:
    name = " ".join(map(code, flag.names))
    values = dict.fromkeys([*flag.sets, *flag.unsupported, *(flag.values or ())])
    for value in values:
        shown = {"": "(switch)", "*": "any other" if flag.sets else "any"}
        yield name, shown.get(value) or code(value), _meaning(flag, value)


def _meaning(flag: Flag, value: str) -> str:
    if value in flag.sets:
        return _fields(flag.sets[value])
    reason = flag.unsupported.get(value, flag.unsupported.get("*", ""))
    return f"refused: {reason}" if reason else "no number changes"


def _fields(fields: Fields) -> str:
    pairs = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return code(pairs) if pairs else "the default of neuronjax"


def variables_table() -> str:
    """Every environment variable that `Policy.from_environment` reads or refuses."""
    rows = [
        *((code(name), meaning) for name, meaning in _VARIABLES.items()),
        *((code(n), f"refused: {why}") for n, why in UNSUPPORTED_VARIABLES.items()),
        *((code(n), f"not read: {why}") for n, why in IGNORED_VARIABLES.items()),
    ]
    return table(("variable", "effect in neuronjax"), rows)


def defaults_table() -> str:
    """Which defaults changed with which SDK."""
    rows = ((version, _fields(fields)) for version, fields in SDK_DEFAULTS.items())
    return table(("SDK", "defaults since this version"), rows)


def legal_table() -> str:
    """The fields of a policy that are a choice, and their legal values."""
    rows = (
        (code(field), ", ".join(code(repr(value)) for value in values))
        for field, values in LEGAL.items()
    )
    return table(("field", "legal values"), rows)
