"""`record`: a dataclass that is frozen for the type checker alone."""

from __future__ import annotations

import dataclasses

from neuronjax.ir.kernel import Access, KernelInstruction, Storage
from neuronjax.ir.record import changed

STORAGE = Storage(0, "sbuf", (128, 4), "float32")


def test_a_storage_is_itself_and_an_access_its_fields():
    other = Storage(0, "sbuf", (128, 4), "float32")
    assert STORAGE != other
    pattern = ((4, 128), (1, 4))
    one, same = (Access(STORAGE, "float32", 0, pattern) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Access(other, "float32", 0, pattern)


def test_changed_equals_dataclasses_replace():
    i = KernelInstruction(name="memset", engine="vector", outputs=(), ordinal=7)
    found, expected = (
        changed(i, engine="gpsimd"),
        dataclasses.replace(i, engine="gpsimd"),
    )
    names = [f.name for f in dataclasses.fields(KernelInstruction)]
    assert [getattr(found, n) for n in names] == [getattr(expected, n) for n in names]
    assert i.engine == "vector"
