"""Saves a JAX function as a StableHLO portable artifact for all supported jaxlibs.

The artifact has the program that `capture` captures, with source lines and pytree
paths. CHLO has no stable form: jaxlib would expand its ops into polynomials, which give
other numbers. So its ops are saved as custom calls named `mhlo.*`, which `parse_child`
turns back into CHLO.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from neuronjax.capture import partition
from neuronjax.capture.decode import decode_module
from neuronjax.capture.saved_forms import bytecode, found, replace
from neuronjax.capture.trace import Traced
from neuronjax.errors import UnsupportedError

#: A version of StableHLO before that of jaxlib 0.10, the oldest jaxlib supported.
VERSION = "1.13.0"
_NAMES = {"chlo.top_k": "mhlo.topk"}


def portable_artifact(
    function: Callable[..., Any],
    leaves: tuple[jax.ShapeDtypeStruct, ...],
    names: tuple[str, ...],
) -> bytes:
    """Return the artifact of `function(*leaves)`, which `capture` must have accepted.

    Raises:
        UnsupportedError: the program has shardings that need the installed jaxlib's
            partitioner, or an op that has no portable form.
    """
    with _without_folders():
        module = Traced.of(function, leaves, names).module()
    if partition.needs_partitioner(decode_module(module, names)):
        raise UnsupportedError(
            "a portable program cannot be sharded: each jaxlib partitions differently",
            remedy="write the collectives by hand, with jax.shard_map over all axes",
        )
    with module.context:
        module = ir.Module.parse(bytecode(module))  # a copy; JAX keeps the original
        for op in found(module, lambda op: op.name.startswith("chlo.")):
            _as_custom_call(op)
        return mlir.serialize_portable_artifact(
            module, VERSION, use_mixed_serialization=True
        )


# A path keeps only the part from the last of these folders on, because `decode`
# recognizes libraries by these folders; a path without them keeps only the file name.
_LIBRARY = "/(?:neuronjax|site-packages|dist-packages)/"
_FOLDERS = f"^.*(?={_LIBRARY})|^(?!.*{_LIBRARY}).*/"


@contextlib.contextmanager
def _without_folders() -> Iterator[None]:
    """Record source files without their folders, which differ between machines."""
    name = "jax_hlo_source_file_canonicalization_regex"
    before = getattr(jax.config, name)
    jax.config.update(name, _FOLDERS)
    try:
        yield
    finally:
        jax.config.update(name, before)


def _as_custom_call(op: Any) -> None:
    given: dict[str, Any] = {name: op.attributes[name] for name in op.attributes}
    given.pop("result_accuracy", None)  # `numerics.elementary` ignores it
    target: Any = _NAMES.get(op.name, op.name.replace("chlo.", "mhlo."))
    if target == "mhlo.topk":
        given["largest"] = ir.BoolAttr.get(True)
    elif given:
        raise UnsupportedError(
            f"portable programs cannot store attributes of this op: {', '.join(given)}",
            op=op.name,
            remedy="leave this op out of the function",
        )
    attributes: dict[str, Any] = {"call_target_name": ir.StringAttr.get(target)}
    if given:
        attributes["mhlo.attributes"] = ir.DictAttr.get(given)
    replace(op, stablehlo.CustomCallOp.OPERATION_NAME, attributes)
