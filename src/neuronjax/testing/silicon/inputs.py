"""What the probes are given, from seeds: the same bits with any NumPy, on any host.

`run.py` makes the inputs on the machine with the chip, `neuronjax silicon-check` makes
them again when it reads the results. Arrays are unsigned integers, the bit patterns of
the elements. NumPy alone is needed.
"""

# pyright: reportMissingParameterType=false

import zlib

import numpy as np

SPECIAL = (
    *(0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000),
    *(0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FA12345, 0x7FFFFFFF, 0xFFD54321),
    *(0x7F7FFFFF, 0xFF7FFFFF, 0x00800000, 0x80800000),
)


def words(seed, size):
    """uint32 [size]: a counter through the finalizer of splitmix64."""
    x = np.arange(1, size + 1, dtype=np.uint64) + np.uint64(seed << 32)
    x = x * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return (x >> np.uint64(32)).astype(np.uint32)


def make(probe, name, how):
    """The bits of one input, an unsigned array.

    `how` has the maker's name under "make"; the rest are its arguments.
    """
    arguments = {key: value for key, value in how.items() if key != "make"}
    seed = zlib.crc32(f"{probe}/{name}".encode())
    return MAKERS[how["make"]](seed, **arguments)


def _floats(seed, shape, low, high):
    """FP32 patterns of both signs with exponents from `low` to `high`."""
    size = int(np.prod(shape))
    random = words(seed, size)
    exponents = words(seed ^ 0x5555, size) % np.uint32(high - low + 1)
    exponents = (exponents + np.uint32(low + 127)) << np.uint32(23)
    return ((random & np.uint32(0x807FFFFF)) | exponents).reshape(shape)


def spread(seed, shape, low=-3, high=4, narrow=False):
    """Numbers of some octaves; BF16 patterns if `narrow`."""
    found = _floats(seed, shape, low, high)
    return (found >> np.uint32(16)).astype(np.uint16) if narrow else found


def sweep(seed, shape):
    """65,536 FP32 arguments: every sign, exponent and upper 7 bits of a fraction."""
    upper = np.arange(65536, dtype=np.uint32) << np.uint32(16)
    return (upper | (words(seed, 65536) & np.uint32(0xFFFF))).reshape(shape)


def codes(seed, shape, largest):
    """8-bit codes of both signs whose magnitudes are at most `largest`."""
    random = words(seed, int(np.prod(shape)))
    magnitude = (random >> np.uint32(8)) % np.uint32(largest + 1)
    sign = (random & np.uint32(1)) << np.uint32(7)
    return (magnitude | sign).astype(np.uint8).reshape(shape)


def ties(seed, shape, bits, low, high):
    """FP32 around the grid of a format that has a fraction of `bits` bits.

    A quarter of the rows lie in its range, with ties; a quarter around and above its
    largest number, 2^high; a quarter where it is subnormal, below 2^low; the rest are
    special patterns.
    """
    rows, size = shape[0] // 4, shape[0] // 4 * shape[1]
    dropped = 23 - bits
    half = 1 << (dropped - 1)
    tails = np.array([0, 1, half - 1, half, half, half, half + 1, 2 * half - 1])
    parts = []
    ranges = (
        (max(low, -20), min(high, 20) - 1),
        (high - 1, min(high + 3, 127)),
        (max(low - bits - 2, -126), max(low - 1, -126)),
    )
    for number, (first, last) in enumerate(ranges):
        found = _floats(seed + number, (size,), first, last)
        tail = tails[words(seed + 9 + number, size) % np.uint32(8)]
        keep = np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
        parts.append((found & keep) | tail.astype(np.uint32))
    parts.append(np.resize(np.array(SPECIAL, np.uint32), size))
    return np.concatenate(parts).reshape(4 * rows, shape[1])


def near_integers(seed, shape):
    """FP32: integers and a quarter, a half or three quarters, up to beyond 2^32."""
    size = int(np.prod(shape))
    power = words(seed, size) % np.uint32(36)
    whole = words(seed + 1, size).astype(np.float64) % np.exp2(power.astype(float))
    whole = np.floor(whole) * np.where(words(seed + 2, size) & np.uint32(1), 1, -1)
    number = whole + (words(seed + 3, size) % np.uint32(4)) / 4
    found = number.astype(np.float32).view(np.uint32)
    found[: 4 * len(SPECIAL)] = np.resize(np.array(SPECIAL, np.uint32), 64)
    return found.reshape(shape)


def subnormals(seed, shape, narrow=False, coarse=False):
    """FP32, or BF16, patterns: half of them subnormal, half of the lowest octaves.

    If `coarse`, FP32 that BF16 has too.
    """
    size = int(np.prod(shape))
    tiny = words(seed, size) & np.uint32(0x807FFFFF)
    small = _floats(seed + 1, (size,), -126, -120)
    found = np.where(np.arange(size) % 2, tiny, small).reshape(shape)
    if coarse:
        found &= np.uint32(0xFFFF0000)
    return (found >> np.uint32(16)).astype(np.uint16) if narrow else found


def powers(seed, shape, low, high, narrow=False):
    """Powers of two, positive."""
    step = np.arange(int(np.prod(shape))) % (high - low + 1)
    found = ((step + low + 127).astype(np.uint32) << np.uint32(23)).reshape(shape)
    return (found >> np.uint32(16)).astype(np.uint16) if narrow else found


def patterns(seed, shape):
    """Any finite numbers, and special patterns in the first column."""
    found = words(seed, int(np.prod(shape))).reshape(shape)
    infinite = found & np.uint32(0x7F800000) == np.uint32(0x7F800000)
    found = np.where(infinite, found ^ np.uint32(1 << 23), found)
    found[:, 0] = np.resize(np.array(SPECIAL, np.uint32), shape[0])
    return found


def first_special(seed, shape):
    """Pairs of special patterns, one row for each; columns meet with `second`."""
    return second_special(seed, shape[::-1]).T.copy()


def second_special(seed, shape):
    """The other of a pair."""
    return np.resize(np.array(SPECIAL, np.uint32), shape)


def integers(seed, shape, most):
    """int32 patterns of up to `most` bits, both signs."""
    size = int(np.prod(shape))
    magnitude = words(seed, size) >> (words(seed + 1, size) % np.uint32(most))
    magnitude = magnitude >> np.uint32(32 - most)
    sign = np.where(words(seed + 2, size) & np.uint32(1), -1, 1)
    return (
        (magnitude.astype(np.int64) * sign)
        .astype(np.int32)
        .view(np.uint32)
        .reshape(shape)
    )


def blocks(seed, shape, narrow):
    """BF16 for groups of 4 columns: every second holds powers of two; zeros, tiny."""
    found = _floats(seed, shape, -9, 9)
    power = np.arange(shape[1]) // 4 % 2 == 1
    found = np.where(power, found & np.uint32(0xFF800000), found)
    found[:, :4] = 0
    found[:, 4:8] = _floats(seed + 1, (shape[0], 4), -124, -121)
    return (found >> np.uint32(16)).astype(np.uint16)


def fractions(seed, shape):
    """FP32 that BF16 has not: column c lies 2^-(1 + c % 12) of a step above 1."""
    steps = np.arange(int(np.prod(shape))) % shape[1] % 12 + 1
    return (
        (np.uint32(0x3F800000) + (np.uint32(1 << 16) >> steps.astype(np.uint32)))
        .astype(np.uint32)
        .reshape(shape)
    )


def pairs(count):
    """All i < j below `count`, in order."""
    return [(i, j) for i in range(count) for j in range(i + 1, count)]


def order_rows(seed, shape):
    """FP32 sums of which each shows where two addends meet; see `order_left`.

    Sum s, of `shape[2]` addends, has 2^100 at i and -2^100 at j for the pair s.
    """
    found = np.ones((shape[0] * shape[1], shape[2]), np.float32)
    for row, (i, j) in enumerate(pairs(shape[2])):
        found[row, i], found[row, j] = 2.0**100, -(2.0**100)
    return found.reshape(shape).view(np.uint32)


def order_left(seed, shape, sign=1):
    """BF16 [k, k]: ones, and 2^100 down the diagonal, with a sign.

    Row m of one operand is huge at m, column n of the other is hugely negative at n:
    of the sum (m, n) what meets the huge product before its negative is lost, the
    others are counted.
    """
    found = np.ones(shape, np.float32)
    np.fill_diagonal(found, sign * 2.0**100)
    return (found.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


MAKERS = {
    maker.__name__: maker
    for maker in (
        *(spread, sweep, codes, ties, near_integers, subnormals, powers, patterns),
        *(first_special, second_special, integers, blocks, fractions),
        *(order_rows, order_left),
    )
}
