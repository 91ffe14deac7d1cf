"""`NkiTensor`: a view with index expressions and explicit patterns.

The documented methods such as `slice`, `permute` and `reshape` are in `tensor_view`;
index expressions are in `indexing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronjax.nki import active
from neuronjax.nki.access_patterns import with_pattern, with_tensor_indirection
from neuronjax.nki.indexing import indexed
from neuronjax.nki.mistakes import WithoutValue
from neuronjax.nki.rearranging import rearranged
from neuronjax.nki.tensor_view import TensorView


class NkiTensor(WithoutValue, TensorView):
    __doc__ = TensorView.__doc__

    # `name in t` and iteration over a tensor are always mistakes.
    __iter__ = None
    __slots__ = ()

    def __getitem__(self, key: Any) -> NkiTensor:
        return indexed(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        active.current().assign(self[key], value)

    def rearrange(
        self,
        src_pattern: Sequence[str | Sequence[str]],
        dst_pattern: Sequence[str | Sequence[str]],
        fixed_sizes: Mapping[str, int] | None = None,
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name, as einops does."""
        return rearranged(self, src_pattern, dst_pattern, dict(fixed_sizes or {}))

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """Return a view with an explicit pattern over the whole storage.

        Args:
            pattern: [stride, count] of every dimension, in elements of `dtype`.
            offset: of the first element from the start of the storage; None keeps this
                view's offset.
            scalar_offset: a tensor of one integer or a VirtualRegister, which is added
                to the offset after multiplication by the stride of `indirect_dim`.
            vector_offset: a tensor with an index of dimension 0 for each partition.
            indirect_dim: dimension of this tensor whose stride scales the runtime
                offsets.
            dtype: the data type in which the view reads the bits.
        """
        return with_pattern(
            self, pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype
        )

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Return a view through free-dimension offsets in a tensor (NeuronCore-v4).

        Args:
            index: [P, K] integers; offset i of a group of partitions is index[i %
                group, i // group]. A group is 32 partitions for the tensor engine, 16
                for the others.
            num_elem: the number of offsets. ASSUMPTION: by default all that a group of
                16 partitions has.
        """
        return with_tensor_indirection(self, index, num_elem)

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        trace = active.current_or_none()
        value = trace.value_text(self) if trace else None
        text = "" if value is None else f", value=\n{value}"
        return f"NkiTensor({name}{self.describe()}{text})"
