"""`nki.typing`: shapes of tensors, as `nt.tensor[128, 512]`.

In annotations they are for the reader; nothing is checked, as the array decides about
its shape. `nt.tensor[[128, 512], nl.bfloat16]` stands for an array in a call of what
`nki.benchmark` made.
"""

from __future__ import annotations

from typing import Any


class tensor:
    """A tensor of a shape, for annotations and for calls without data.

    Attributes:
        shape: the sizes that were written down.
        dtype: the data type that was, or None.
    """

    def __init__(self, shape: tuple[Any, ...], dtype: Any = None) -> None:
        self.shape, self.dtype = shape, dtype

    def __class_getitem__(cls, item: Any) -> tensor:
        items = item if isinstance(item, tuple) else (item,)
        if isinstance(items[0], list | tuple):
            return cls(tuple(items[0]), *items[1:])
        return cls(items)

    def __repr__(self) -> str:
        return f"nki.typing.tensor[{', '.join(map(str, self.shape))}]"


class mutable_tensor(tensor):
    """An argument that the kernel writes to, for annotations."""
