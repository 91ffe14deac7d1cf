"""`nl.device_print`, which prints a tile's values while the kernel runs."""

from __future__ import annotations

from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import emit


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print "prefix value" to standard output when the kernel's run reaches this line.

    Args:
        print_prefix: the text, known when the kernel is traced.

    Raises:
        InvalidProgramError: the prefix is not text, or the tensor not a tensor.
    """
    if not isinstance(print_prefix, str) or not isinstance(tensor, NkiTensor):
        refuse(
            "nl.device_print",
            f"({print_prefix!r}, {tensor!r})",
            "give a str and a tensor; numbers known while the kernel is traced "
            "are printed by print()",
        )
    emit("device_print", "sync", [], [tensor], attributes={"prefix": print_prefix})
