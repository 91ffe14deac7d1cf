"""Lines of random programs that hold blocks: loops, branches, calls, derivatives.

Each takes the writer of a program and adds a line to it, if values for it are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.fuzz.program import Value

if TYPE_CHECKING:
    from tests.fuzz.generator import Writer

#: Elements of a value; more would be slow and find no more.
MOST_ELEMENTS = 240


def _tuple(values: Sequence[Value | str]) -> str:
    names = [v if isinstance(v, str) else v.name for v in values]
    return f"({', '.join(names)},)"


def _scan(writer: Writer) -> None:
    starts, parameters = writer.carries()
    rows = [v for v in writer.known if v.shape and v.shape[0] in (2, 3, 5)]
    if not rows:
        return
    sequence = writer.pick(rows)
    row = dataclasses.replace(sequence, name=writer.name(), shape=sequence.shape[1:])
    out = writer.like(starts[0])
    block = writer.block([*parameters, row], [*parameters, out])
    step = f"lambda carry, x: (lambda r: (r[:-1], r[-1]))({block.name}(*carry, x))"
    reverse = writer.draw(st.booleans())
    stacked = writer.like(out, (sequence.shape[0], *out.shape))
    ends = [writer.like(v) for v in starts]
    if stacked.size > MOST_ELEMENTS:
        return
    inner = f"lax.scan({step}, {_tuple(starts)}, {sequence.name}, reverse={reverse})"
    writer.write(f"(lambda r: (*r[0], r[1]))({inner})", [*ends, stacked], block)


def _fori(writer: Writer) -> None:
    starts, parameters = writer.carries()
    counter = Value(name=writer.name("i"), dtype="int32", shape=(), exact=True)
    block = writer.block([counter, *parameters], parameters)
    count = writer.draw(st.integers(1, 3))
    step = f"lambda i, carry: {block.name}(i, *carry)"
    ends = [writer.like(v) for v in starts]
    writer.write(f"lax.fori_loop(0, {count}, {step}, {_tuple(starts)})", ends, block)


def _while(writer: Writer) -> None:
    """The number of rounds depends on the bits of an integer."""
    starts, parameters = writer.carries()
    counts = [v for v in writer.known if v.kind == "i"]
    if not counts:
        return
    limit = f"jnp.max({writer.pick(counts).name} & 3)"
    counter = Value(name=writer.name("i"), dtype="int32", shape=(), exact=True)
    block = writer.block([counter, *parameters], parameters)
    unfinished = f"lambda carry: carry[0] < {limit}"
    step = f"lambda carry: (carry[0] + 1, *{block.name}(*carry))"
    start = f"(jnp.int32(0), *{_tuple(starts)})"
    ends = [writer.like(v) for v in starts]
    writer.write(f"lax.while_loop({unfinished}, {step}, {start})[1:]", ends, block)


def _cond(writer: Writer) -> None:
    starts, parameters = writer.carries()
    tests = [v for v in writer.known if v.kind == "b"]
    test = f"jnp.any({writer.pick(tests).name})" if tests else "jnp.bool_(True)"
    yes, no = (writer.block(parameters, parameters) for _ in range(2))
    ends = [writer.like(v) for v in starts]
    call = f"lax.cond({test}, {yes.name}, {no.name}, *{_tuple(starts)})"
    writer.write(call, ends, yes, no)


def _switch(writer: Writer) -> None:
    starts, parameters = writer.carries()
    tests = [v for v in writer.known if v.kind == "i"]
    test = f"jnp.max({writer.pick(tests).name} & 3)" if tests else "1"
    blocks = [writer.block(parameters, parameters) for _ in range(3)]
    ends = [writer.like(v) for v in starts]
    branches = _tuple([block.name for block in blocks])
    index = f"jnp.asarray({test}, jnp.int32)"
    writer.write(f"lax.switch({index}, {branches}, *{_tuple(starts)})", ends, *blocks)


def _vmap(writer: Writer) -> None:
    batched = [v for v in writer.known if v.shape and 1 < v.shape[0] <= 5]
    if not batched:
        return
    value = writer.pick(batched)
    row = dataclasses.replace(value, name=writer.name(), shape=value.shape[1:])
    out = writer.like(row)
    block = writer.block([row], [out])
    ends = [writer.like(value)]
    writer.write(f"jax.vmap({block.name})({value.name})", ends, block)


def _called(transformation: str, options: str = "") -> Callable[[Writer], None]:
    def control(writer: Writer) -> None:
        starts, parameters = writer.carries()
        block = writer.block(parameters, parameters)
        ends = [writer.like(v) for v in starts]
        call = f"{transformation}({block.name}{options})(*{_tuple(starts)})"
        writer.write(call, ends, block)

    return control


def _custom_vjp(writer: Writer) -> None:
    """A block that sees constants and its parameters: JAX allows it no more."""
    starts, parameters = writer.carries()
    constants = [v for v in writer.known if v in writer.constants]
    block = writer.block(parameters, parameters, constants)
    ends = [writer.like(v) for v in starts]
    writer.write(f"halved({block.name})(*{_tuple(starts)})", ends, block)


def _grad(writer: Writer) -> None:
    """The gradient of a block inside a program."""
    floats = [v for v in writer.known if v.kind == "f"]
    if not floats:
        return
    value = writer.pick(floats)
    parameter = writer.like(value)
    inner = dataclasses.replace(writer, smooth=True)
    block = inner.block([parameter], [parameter])
    total = f"lambda x: jnp.tanh({block.name}(x)[0]).astype(jnp.float32).sum()"
    ends = [writer.like(value)]
    writer.write(f"(jnp.tanh(jax.grad({total})({value.name})),)", ends, block)


#: What devices do with a block's result, by its kind. Integers are moved alone: their
#: sums are in FP32, which warns.
_EXCHANGES = {
    "f": (
        "lax.pmean({x}, 'i')",
        "lax.all_gather({x}, 'i', tiled=True)[1:2]",
        "lax.ppermute({x}, 'i', [(0, 1), (1, 2), (3, 0)])",
        "lax.psum_scatter(jnp.concatenate([{x}] * 4), 'i', tiled=True) / 4",
    ),
    "i": (
        "lax.all_gather({x}, 'i', tiled=True)[1:2]",
        "lax.ppermute({x}, 'i', [(0, 1), (1, 2), (3, 0)])",
    ),
}


def _shard_map(writer: Writer) -> None:
    """A block on each of four devices, and one exchange."""
    if writer.on_devices:
        return
    values = [v for v in writer.known if v.kind != "b" and v.size <= 60]
    if not values:
        return
    value = writer.pick(values)
    rest = value.shape[1:]
    parameter = writer.like(value, (1, *rest))
    inner = dataclasses.replace(writer, on_devices=True, lines=[])
    unplaced = [v for v in writer.known if v.name not in writer.placed]
    block = inner.block([parameter], [parameter], unplaced)
    exchange = writer.draw(st.sampled_from(_EXCHANGES[value.kind]))
    body = f"lambda x: ({exchange.format(x=f'{block.name}(x)[0]')},)"
    specs = "mesh=mesh, in_specs=P('i'), out_specs=(P('i'),)"
    operand = f"jnp.resize({value.name}, {(4, *rest)})"
    writer.write(
        f"jax.shard_map({body}, {specs}, check_vma=False)({operand})",
        [writer.like(value, (4, *rest))],
        block,
    )


CONTROL: Mapping[str, Callable[[Writer], None]] = {
    "scan": _scan,
    "fori": _fori,
    "while": _while,
    "cond": _cond,
    "switch": _switch,
    "vmap": _vmap,
    "jit": _called("jax.jit"),
    "checkpoint": _called("jax.checkpoint"),
    "checkpoint of dots": _called(
        "jax.checkpoint", ", policy=jax.checkpoint_policies.dots_saveable"
    ),
    "custom_vjp": _custom_vjp,
    "shard_map": _shard_map,
    "grad": _grad,
}
