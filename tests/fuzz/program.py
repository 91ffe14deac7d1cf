"""A random program as data, and as the Python source that a failure prints.

A program is a list of lines over named values; control flow holds blocks, which are
lists of lines again. What runs is the printed source itself, so a failure is pasted
into a file as it stands. `wobbling` runs the same lines with every float result moved
by a few units in its last place: how far the outputs then move is what rounding may do
to them, whoever rounds.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz.values import literal, random_array

#: What every program may name.
PRELUDE = '''\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from numpy import inf, nan

import neuronjax as nj

mesh = nj.make_mesh((4,), ("i",))


def halved(block):
    """The block with a derivative of its own: half of the real one."""
    ruled = jax.custom_vjp(block)

    def half(g):
        return g if g.dtype == jax.dtypes.float0 else g * g.dtype.type(0.5)

    def backward(x, cotangents):
        return jax.tree.map(half, jax.vjp(block, *x)[1](cotangents))

    ruled.defvjp(lambda *x: (block(*x), x), backward)
    return ruled
'''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value:
    """A named array.

    Attributes:
        name: a Python identifier.
        dtype: NumPy's name.
        shape: sizes in elements.
        exact: no rounding lies behind it, so that decisions may hang on its bits.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    exact: bool

    @property
    def kind(self) -> str:
        """ "f", "i" (signed and unsigned) or "b"."""
        return kind_of(self.dtype)

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=int))


def kind_of(dtype: str) -> str:
    """ "f", "i" or "b"."""
    if dtype == "bool":
        return "b"
    return "f" if jnp.issubdtype(jnp.dtype(dtype), jnp.floating) else "i"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """`targets = expression`, after the definition of the blocks that it names.

    An expression with blocks gives a tuple, one without gives an array.
    """

    targets: tuple[Value, ...]
    expression: str
    blocks: tuple[Block, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A function: parameters, lines, and the expressions it returns."""

    name: str
    parameters: tuple[str, ...]
    lines: tuple[Line, ...]
    results: tuple[str, ...]

    def source(self, wobble: bool = False) -> str:
        """The definition as Python text."""
        body: list[str] = []
        for line in self.lines:
            body += [block.source(wobble) for block in line.blocks]
            names = ", ".join(target.name for target in line.targets)
            comma = "," if line.blocks and len(line.targets) == 1 else ""
            body.append(f"{names}{comma} = {line.expression}")
            body += [
                f"{t.name} = wobble({t.name})"
                for t in line.targets
                if wobble and t.kind == "f" and not t.exact
            ]
        body.append(f"return ({', '.join(self.results)},)")
        head = f"def {self.name}({', '.join(self.parameters)}):\n"
        return head + textwrap.indent("\n".join(body), "    ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What is fuzzed.

    Attributes:
        inputs: the arguments; all are exact.
        constants: arrays that the function closes over, exact too.
        block: the function; it returns the values that no line uses.
        results: those values.
        transformation: key of `TRANSFORMATIONS`.
        seed: of arguments and constants.
        wild: whether their floats are of any bits.
        target: the chip.
        x64: whether JAX has 64-bit types on.
        repeats: the block runs so often, one run's results the next one's arguments.
    """

    inputs: tuple[Value, ...]
    constants: tuple[Value, ...] = ()
    block: Block
    results: tuple[Value, ...]
    transformation: str
    seed: int
    wild: bool = False
    target: str = "trn2"
    x64: bool = False
    repeats: int = 1

    def __repr__(self) -> str:
        types = [f"{v.name}: {v.dtype}{list(v.shape)}" for v in self.inputs]
        about = [self.transformation, f"seed {self.seed}", self.target]
        about += ["64-bit types"] * self.x64 + [", ".join(types)]
        return f"# {'; '.join(about)}\n{self.source()}"

    @property
    def has_native_twin(self) -> bool:
        """Whether JAX alone gives values to hold ours against: on one device, tame,
        and with no decision that hangs on what was rounded in an earlier run."""
        source = repr(self)
        # Of E8M0, which has neither zero nor sign, most results are NaN.
        apart = any(word in source for word in ("jax.shard_map", "float8_e8m0fnu"))
        return not (self.wild or apart or self.repeats > 1)

    def source(self, wobble: bool = False) -> str:
        """The function `program` and the constants that it closes over."""
        values = self._arrays(self.constants, 1)
        constants = [
            f"{v.name} = jnp.asarray({literal(a)})"
            for v, a in zip(self.constants, values, strict=True)
        ]
        source = self.block.source(wobble)
        if self.repeats > 1:
            source = f"{source}\nonce = program\n{self._repeated()}"
        return "\n".join([*constants, source])

    def _repeated(self) -> str:
        names = ", ".join(v.name for v in self.inputs)
        following = []
        for value in self.inputs:
            fits = [i for i, r in enumerate(self.results) if r.kind == value.kind]
            got = f"jnp.resize(results[{fits[-1]}], {value.shape})" if fits else ""
            following.append(f"{got}.astype(jnp.{value.dtype})" if got else value.name)
        return textwrap.dedent(f"""\
            def program({names}):
                for _ in range({self.repeats}):
                    results = once({names})
                    {names}{"," * (len(self.inputs) == 1)} = ({", ".join(following)},)
                return results
            """)

    def function(self, wobble: Callable[[Any], Any] | None = None) -> Callable:
        """The Python function; what is not exact moved by `wobble` if there is one."""
        names: dict[str, Any] = {"wobble": wobble}
        exec(PRELUDE, names)
        exec(self.source(wobble is not None), names)
        return names[self.block.name]

    def untransformed(self, wobble: Callable[[Any], Any] | None = None) -> Callable:
        """The function, or its loss where the transformation differentiates."""
        function = self.function(wobble)
        return self._loss(function) if "grad" in self.transformation else function

    def transformed(self, function: Callable) -> Callable:
        """The transformation of what `untransformed` returns, emulated or not."""
        floats = tuple(i for i, v in enumerate(self.inputs) if v.kind == "f")
        return TRANSFORMATIONS[self.transformation](function, floats)

    def _loss(self, function: Callable) -> Callable:
        """float32: the sum of the means of the float results."""
        floats = [v.kind == "f" for v in self.results]

        def total(*args: Any) -> jax.Array:
            parts = [
                jnp.mean(r.astype(jnp.float32))
                for r, is_float in zip(function(*args), floats, strict=True)
                if is_float
            ]
            return sum(parts, jnp.float32(0))

        return total

    def arguments(self) -> list[jax.Array]:
        """The inputs."""
        return [jnp.asarray(a) for a in self.argument_arrays()]

    def argument_arrays(self) -> list[np.ndarray]:
        """The inputs, not yet JAX's."""
        batch = (BATCH,) if "vmap" in self.transformation else ()
        return self._arrays(self.inputs, 0, batch)

    def _arrays(
        self, values: tuple[Value, ...], stream: int, batch: tuple[int, ...] = ()
    ) -> list[np.ndarray]:
        random = np.random.default_rng([self.seed, stream])
        return [
            random_array(random, v.dtype, batch + v.shape, self.wild) for v in values
        ]


#: Of a vmap around a whole program.
BATCH = 3


# ---- Transformations of whole programs. Each takes (function, argnums of floats).

Transformation = Callable[[Callable, tuple[int, ...]], Callable]


def _grad(function: Callable, argnums: tuple[int, ...]) -> Callable:
    return jax.value_and_grad(function, argnums=argnums)


TRANSFORMATIONS: dict[str, Transformation] = {
    "value": lambda function, argnums: function,
    "grad": _grad,
    "vmap": lambda function, argnums: jax.vmap(function),
    "vmap of grad": lambda function, argnums: jax.vmap(_grad(function, argnums)),
    "grad of remat": lambda function, argnums: _grad(jax.checkpoint(function), argnums),
}


def wobbler(seed: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """x -> x times 1 or 1 + 4 eps, elements chosen by a hash of seed, call and place.

    Args:
        seed: uint32 scalar, of the run.
    """
    calls = iter(range(10**9))

    def wobble(x: jax.Array) -> jax.Array:
        place = jnp.arange(x.size, dtype=jnp.uint32).reshape(x.shape)
        mixed = (place + seed * 7919 + next(calls) * 104729) * jnp.uint32(2654435761)
        up = ((mixed ^ (mixed >> 15)) >> 9) & 1
        ulps = jnp.asarray(4 * jnp.finfo(x.dtype).eps, x.dtype)
        return x * (1 + ulps * up.astype(x.dtype))

    return wobble
