"""Tensors with block dimensions, which are lists of tiles without memory of their own.

Dimensions before `nl.par_dim` are logical: every (partition, free) tile is allocated
separately where it is used, and tiles with disjoint lifetimes may share memory (NKI
Direct Allocation Developer Guide, "NKI Tensors Semantics"; NKI Block Dimension
Migration Guide). An instruction takes one tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronjax.nki.indexing import DynamicSlice
from neuronjax.nki.legacy.dynamic import Offset
from neuronjax.nki.legacy.masks import Box
from neuronjax.nki.legacy.tiles import Tile, expanded
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor


class BlockedTensor(Tile):
    """Tiles indexed by block.

    Args:
        tiles: all tiles, in row-major order of the block indices.
        numbers: the selected tiles' positions in `tiles`, by block index.
        first_use: fills a tile before its first use, where the tile's lifetime begins.
    """

    def __init__(
        self,
        tiles: list[Tile],
        numbers: np.ndarray,
        first_use: Callable[[Tile], Any] | None = None,
    ) -> None:
        self.grid = None
        self._tiles, self._numbers = tiles, numbers
        self._fill = first_use
        self._waiting = set(range(len(tiles))) if first_use is not None else set()

    @property
    def tensor(self) -> NkiTensor:  # type: ignore[override]
        """The tensor of the only tile."""
        return self._one().tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The block dimensions, then partitions, then free dimensions."""
        return (*self._numbers.shape, *self._tiles[0].shape)

    @property
    def dtype(self) -> str:
        return self._tiles[0].dtype

    @property
    def buffer(self) -> Any:
        return self._tiles[0].buffer

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape that an instruction sees: that of one tile."""
        return self._tiles[0].sizes

    def of(self, box: Box | None = None) -> NkiTensor:
        """Return a view of the only tile; refuse several tiles."""
        return self._one().of(box)

    def set(self, value: Any, box: Box | None = None) -> None:
        """Copy a number into all tiles, or a tile into the only one."""
        if isinstance(value, Tile) or box is not None:
            self._one().set(value, box)
            return
        for number in self._numbers.flat:
            self._used(int(number)).set(value)

    def __getitem__(self, key: Any) -> Tile:
        keys = expanded(key, len(self.shape))
        count = self._numbers.ndim
        chosen = self._numbers[tuple(_block_index(k) for k in keys[:count])]
        if isinstance(chosen, np.ndarray) and chosen.size > 1:
            whole = (isinstance(k, slice) and k == slice(None) for k in keys[count:])
            if not all(whole):
                refuse("tile", f"a part of {chosen.size} blocks", "select one block")
            other = BlockedTensor(self._tiles, chosen, self._fill)
            other._waiting = self._waiting
            return other
        return self._used(int(np.asarray(chosen).item()))[tuple(keys[count:])]

    def _one(self) -> Tile:
        if self._numbers.size != 1:
            refuse("tile", f"{self._numbers.size} blocks at once", "select one block")
        return self._used(int(self._numbers.item()))

    def _used(self, number: int) -> Tile:
        tile = self._tiles[number]
        if number in self._waiting and self._fill is not None:
            self._waiting.remove(number)
            self._fill(tile)
        return tile


def _block_index(key: Any) -> Any:
    """Return a block key as a number or slice; an index array must select one block."""
    if isinstance(key, slice | int):
        return key
    if isinstance(key, DynamicSlice):
        return slice(int(key.start), int(key.start) + key.size)
    if isinstance(key, Tile | Offset):
        refuse("index", "a block chosen at run time", "give numbers as block indices")
    values = np.unique(np.asarray(key))
    if values.size != 1:
        refuse(
            "index",
            f"an index array over {values.size} blocks",
            "an instruction takes one tile: loop over the blocks",
        )
    return int(values[0])
