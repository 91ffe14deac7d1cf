"""Small programs saved in every format, for the tests of loading."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import mlir

PLATFORM = "neuron"


def network(params: dict, x: jax.Array, *, scale: jax.Array) -> dict:
    """A dot, a sum, a reduction and an integer."""
    hidden = jnp.maximum(x @ params["w"] + params["b"], 0)
    return {"out": hidden * scale, "more": (jnp.sum(x > 0), hidden.sum(axis=1))}


def arguments(seed: int = 0) -> tuple[tuple, dict]:
    """Of `network`."""
    draw = np.random.default_rng(seed).standard_normal
    params = {"w": jnp.float32(draw((4, 8))), "b": jnp.float32(draw(8))}
    return (params, jnp.float32(draw((3, 4)))), {"scale": jnp.float32(1.5)}


def lowered(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`jax.stages.Lowered` for the platform of the emulator."""
    traced = jax.jit(function).trace(*args, **kwargs)
    return traced.lower(lowering_platforms=(PLATFORM,))


def exported(
    function: Callable[..., Any],
    *args: Any,
    platforms: tuple[str, ...] = (PLATFORM,),
    vjp_order: int = 0,
    **kwargs: Any,
) -> bytes:
    """A jax.export artifact."""
    made = export.export(jax.jit(function), platforms=platforms)(*args, **kwargs)
    return bytes(made.serialize(vjp_order=vjp_order))


def _text(program: Any, **options: Any) -> bytes:
    return program.compiler_ir().operation.get_asm(**options).encode()


def _bytecode(program: Any) -> bytes:
    buffer = io.BytesIO()
    program.compiler_ir().operation.write_bytecode(buffer)
    return buffer.getvalue()


def _portable(program: Any) -> bytes:
    module = program.compiler_ir()
    return mlir.serialize_portable_artifact(module, "1.9.0")


def _hlo_proto(program: Any) -> bytes:
    return program.compiler_ir("hlo").as_serialized_hlo_module_proto()


def _wrapped_hlo_proto(program: Any) -> bytes:
    """As the field hlo_module, number 1, of an HloProto."""
    inner = _hlo_proto(program)
    length, varint = len(inner), b""
    while length > 127:
        varint += bytes([length & 127 | 128])
        length >>= 7
    return b"\x0a" + varint + bytes([length]) + inner


FORMATS: dict[str, Callable[[Any], bytes]] = {
    "mlir": _text,
    "mlir with locations": lambda program: _text(program, enable_debug_info=True),
    "mlir in generic form": lambda program: _text(program, print_generic_op_form=True),
    "mlirbc": _bytecode,
    "portable artifact": _portable,
    "hlo text": lambda program: program.as_text("hlo").encode(),
    "hlo proto": _hlo_proto,
    "wrapped hlo proto": _wrapped_hlo_proto,
}
