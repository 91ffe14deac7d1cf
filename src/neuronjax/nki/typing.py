"""`nki.typing`: shapes of tensors in annotations, as `nt.tensor[128, 512]`.

They are for the reader; nothing is checked, as the array decides about its shape.
"""

from __future__ import annotations

from typing import Any


class tensor:
    """A tensor of a shape, for annotations.

    Attributes:
        shape: the sizes that were written down.
    """

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = shape

    def __class_getitem__(cls, shape: Any) -> tensor:
        return cls(shape if isinstance(shape, tuple) else (shape,))

    def __repr__(self) -> str:
        return f"nki.typing.tensor[{', '.join(map(str, self.shape))}]"


class mutable_tensor(tensor):
    """An argument that the kernel writes to, for annotations."""
