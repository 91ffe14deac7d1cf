"""What a file may have become: bits flipped, cut off, spliced, renumbered."""

from __future__ import annotations

import random
from collections.abc import Iterator


def flip_bits(data: bytes, draw: random.Random) -> bytes:
    """One to eight bits."""
    new = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        new[draw.randrange(len(new))] ^= 1 << draw.randrange(8)
    return bytes(new)


def truncate(data: bytes, draw: random.Random) -> bytes:
    """The end is missing."""
    return data[: draw.randrange(len(data))]


def insert(data: bytes, draw: random.Random) -> bytes:
    """Random bytes in between, or a number near the limits of its type."""
    new = draw.choice([draw.randbytes(draw.randint(1, 16)), b"\xff" * 8, b"\x00" * 8])
    at = draw.randrange(len(data))
    return data[:at] + new + data[at:]


def splice(data: bytes, draw: random.Random) -> bytes:
    """A piece of the file in another place of it."""
    start, at = (draw.randrange(len(data)) for _ in range(2))
    piece = data[start : start + draw.randint(1, 64)]
    overwritten = draw.choice([0, len(piece)])
    return data[:at] + piece + data[at + overwritten :]


def renumber(data: bytes, draw: random.Random) -> bytes:
    """Digits become others: versions, sizes, indices, SSA names."""
    digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57] or [0]
    new = bytearray(data)
    for at in draw.sample(digits, min(len(digits), draw.randint(1, 3))):
        new[at] = draw.choice(b"0123456789")
    return bytes(new)


def head(data: bytes, draw: random.Random) -> bytes:
    """One of the first bytes, where magic numbers and versions are."""
    at = draw.randrange(min(len(data), 32))
    return data[:at] + draw.randbytes(1) + data[at + 1 :]


MUTATIONS = (flip_bits, truncate, insert, splice, renumber, head)


def mutated(data: bytes, count: int, seed: str) -> Iterator[bytes]:
    """So many mutations; the same for the same seed."""
    draw = random.Random(seed)
    for i in range(count):
        yield MUTATIONS[i % len(MUTATIONS)](data, draw)


def cut(data: bytes, count: int) -> Iterator[bytes]:
    """The file cut off at so many places, evenly; the empty file is the first."""
    yield from (data[: len(data) * i // count] for i in range(count))
