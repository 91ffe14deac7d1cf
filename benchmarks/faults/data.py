"""Arrays from short strings: shape, distribution and seed, as `40x16 *0.5 @7`.

| text | array |
|---|---|
| `40x16 @7` | normal numbers in FP32, from the seed 7 |
| `40x16 *0.5 +3 @7` | the same with a scale and a mean |
| `40x16 w*2 @7` | a weight that keeps the variance, times 2; `w` alone is times 1 |
| `40 -1..2 @7` | uniform numbers in FP32 |
| `40 int 0..9 @7` | int32 numbers from 0 to 8 |
| `f32 0.5 1 2`, `i32 7` | these numbers; `u32` and `f16` too |
| `24 =1.5`, `9 even 0..4` | an FP32 array of equal numbers, and of evenly spaced ones |
| `mlp 6x12x2 @7` | the parameters of a perceptron, for `common.mlp` |
| `block 64 @7`, `block 64x96 @7` | those of `parts.block` and of `common.block` |
| `40 int 0..9 @7 as f32` | any array in another dtype |
| `40x16 @7 [0,3]=9 [1:4]*=2` | elements changed, from left to right |
| `block 64 @7 [q]*=3` | parameters of which one array is changed |

`in: 8x16 w @7, out: 16x4 w` is a dictionary; a drawn entry without a seed has the seed
after that of the entry before, and `q k: 8x16 w @7` is two such entries.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np

from benchmarks.faults import common, parts

_NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_RANGE = rf"(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})"
_DRAWN = re.compile(
    rf"(?:(?P<model>mlp|block) )?(?P<shape>\d+(?:x\d+)*)(?P<whole> int)?(?: {_RANGE})?"
    rf"(?P<weight> w)?(?: ?\*(?P<scale>{_NUMBER}))?(?: \+(?P<shift>{_NUMBER}))?"
    r" @(?P<seed>\d+)"
)
_PLAIN = re.compile(
    rf"(?P<shape>\d+(?:x\d+)*) (?:=(?P<value>{_NUMBER})|(?P<even>even) {_RANGE})"
)
_DTYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "u32": np.uint32}
_EDIT = re.compile(rf"(?P<places>\S+)\](?P<how>[-+*]?)=(?P<number>{_NUMBER})")
_HOW = {"+": np.add, "-": np.subtract, "*": np.multiply}
_TAIL = re.compile(r"(?: as | \[).*")


def made(tree: Any) -> Any:
    """Return a pytree in which texts and functions are replaced by arrays."""

    def leaf(value: Any) -> Any:
        if isinstance(value, str):
            return _entries(value) if ": " in value else array(value)
        return value() if callable(value) else value

    return jax.tree.map(leaf, tree)


def array(text: str) -> Any:
    """Return the array, or the parameters, for a text of the table above."""
    text, *edits = text.split(" [")
    text, _, dtype = text.partition(" as ")
    found = _unedited(text)
    if dtype:
        found = found.astype(_DTYPES[dtype])
    for edit in edits:
        _change(found, edit)
    return found


def _change(found: Any, edit: str) -> None:
    """Change elements as an edit says, whose first bracket is removed: "0,3]=9"."""
    match = _EDIT.fullmatch(edit)
    if not match:
        raise ValueError(f"{edit!r} is no edit that `data` describes")
    *keys, place = match["places"].split("][")
    if place.isidentifier():
        keys, place = [*keys, place], "..."
    for key in keys:
        found = found[int(key) if key.isdigit() else key]
    at, number = eval(f"np.s_[{place}]"), float(match["number"])
    how = match["how"]
    found[at] = _HOW[how](found[at], number) if how else number


def _unedited(text: str) -> Any:
    kind, _, numbers = text.partition(" ")
    if kind in _DTYPES:
        values = [float(n) for n in numbers.split()]
        return _DTYPES[kind](values if len(values) > 1 else values[0])
    if match := _PLAIN.fullmatch(text):
        shape = [int(n) for n in match["shape"].split("x")]
        if match["even"]:
            even = np.linspace(float(match["low"]), float(match["high"]), *shape)
            return even.astype(np.float32)
        return np.full(shape, float(match["value"]), np.float32)
    if match := _DRAWN.fullmatch(text):
        return _drawn(match)
    raise ValueError(f"{text!r} is not of the form that `data` describes")


def _drawn(match: re.Match[str]) -> Any:
    seed, shape = int(match["seed"]), [int(n) for n in match["shape"].split("x")]
    if match["model"] == "mlp":
        return common.mlp_params(seed, *shape)
    if match["model"] == "block":
        maker = parts.block_params if len(shape) == 1 else common.block_params
        return maker(seed, *shape)
    if match["whole"]:
        return parts.integers(seed, int(match["high"]), *shape, low=int(match["low"]))
    if match["low"]:
        low, high = float(match["low"]), float(match["high"])
        return parts.uniform(seed, *shape, low=low, high=high)
    scale, shift = float(match["scale"] or 1), float(match["shift"] or 0)
    if match["weight"]:
        return parts.weight(seed, *shape, gain=scale)
    return parts.normal(seed, *shape, scale=scale, shift=shift)


def _entries(text: str) -> dict[str, Any]:
    out, seed = {}, 0
    for entry in text.split(", "):
        names, value = entry.split(": ")
        base = _TAIL.sub("", value)
        tail = value.removeprefix(base)
        plain = base.partition(" ")[0] in _DTYPES or _PLAIN.fullmatch(base)
        for name in names.split():
            if not plain:
                base, _, given = base.partition(" @")
                seed = int(given) if given else seed + 1
                out[name] = array(f"{base} @{seed}{tail}")
            else:
                out[name] = array(value)
    return out
