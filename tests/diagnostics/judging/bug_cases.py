"""Small right kernels of both styles, and the bugs that people write into them.

A bug is a text of its kernel for another, and what the verdict calls it: the rule of a
limit, a hazard or an advice, or `WRONG` where only the values say so.
"""

from __future__ import annotations

from typing import NamedTuple

#: Of these a kernel is told, and not refused: earlier compilers took it.
#: What is named and no reason to refuse.
ADVICE = ("documented-limit", "loop-carried-reduction")
#: The comparison with the reference fails, and nothing else is found.
WRONG = "wrong result"


class RightKernel(NamedTuple):
    """A kernel that is accepted.

    Attributes:
        inputs: what `get_inputs` of the reference returns.
        forward: the reference, as a lambda.
        body: of the kernel, below the imports.
        older: whether it is of the older style.
        grid: of its launch.
        seconds: that the judge may take for it.
    """

    inputs: str
    forward: str
    body: str
    older: bool = False
    grid: tuple[int, ...] = ()
    seconds: float = 120.0


class Bug(NamedTuple):
    """One text for another.

    Attributes:
        kernel: which right kernel.
        before, after: the texts.
        verdict: what it is called.
    """

    kernel: str
    before: str
    after: str
    verdict: str


REFERENCE = """
import numpy as np
import ml_dtypes

draw = lambda *shape: np.random.normal(size=shape).astype(np.float32)
whole = lambda *shape: np.random.randint(0, 99, shape).astype(np.int32)


def get_inputs():
    return {inputs}


forward = {forward}
"""
NEWER = """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl
"""
OLDER = """
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
"""


def reference_of(kernel: RightKernel) -> str:
    """The text of its reference."""
    return REFERENCE.format(inputs=kernel.inputs, forward=kernel.forward)


def text_of(kernel: RightKernel) -> str:
    """The text of its file."""
    return (OLDER if kernel.older else NEWER) + kernel.body


def text_with(bug: Bug) -> str:
    """The text of the file with the bug.

    Raises:
        ValueError: the right kernel has no such text, or has it twice.
    """
    kernel = KERNELS[bug.kernel]
    if kernel.body.count(bug.before) != 1:
        raise ValueError(f"{bug.kernel} does not have once: {bug.before}")
    return text_of(kernel).replace(bug.before, bug.after)


MATMUL = """
@nki.jit
def kernel(x, w):
    total = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
    for k in range(3):
        rows = nl.ds(k * 128, 128)
        left, right = nl.load(x[rows]), nl.load(w[rows])
        nisa.nc_matmul(total, stationary=left, moving=right, accumulate=k > 0)
    tile = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=total)
    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""

SOFTMAX = """
@nki.jit
def kernel(x):
    rows = nl.load(x)
    most = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=most, op=nl.maximum, data=rows, axis=1, negate=True)
    powers = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=powers, op=nl.exp, data=rows, bias=most, scale=1.0)
    total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=powers, axis=1)
    part = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=part, data=total)
    result = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=powers, op0=nl.multiply, operand0=part)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)
    return out
"""

DOUBLED = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(4):
        rows = nl.ds(i * 64, 64)
        tile = nl.load(x[rows])
        nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out[rows], src=tile)
    return out
"""

# The device counts the turns, so that nobody knows before which rows are written.
ON_DEVICE = """
@nki.jit
def kernel(x, count):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    turns = nisa.register_alloc(0)
    nisa.register_load(turns, nl.load(count))
    tile = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(tile, 0)
    for i in nl.dynamic_range(0, turns, 64):
        rows = nl.ds(i, 64)
        nisa.dma_copy(dst=tile, src=x[rows])
        nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out[rows], src=tile)
    return out
"""

HALVED = """
@nki.jit
def kernel(x):
    tile = nl.load(x)
    number = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(number, 5)
    left = nisa.register_alloc(5)
    while left:
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)
        nisa.tensor_scalar(dst=number, data=number, op0=nl.subtract, operand0=1)
        nisa.register_load(left, number)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""

TWO_CORES = """
@nki.jit
def kernel(x):
    core = nl.program_id(0)
    halves = nl.ndarray((2, 64, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=halves[core], src=nl.load(x[nl.ds(core * 64, 64)]))
    nisa.core_barrier(halves, (0, 1))
    tile = nl.load(halves[0])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[nl.ds(core * 64, 64)], src=tile)
    return out
"""

GATHERED = """
@nki.jit
def kernel(x, rows):
    at = nl.load(rows)
    tile = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.ap([[32, 64], [1, 32]], vector_offset=at))
    out = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""

BLOCKS = """
@nki.jit
def kernel(x):
    rows = nl.load(x)
    total = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=rows, axis=2)
    out = nl.ndarray((128, 16), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)
    return out
"""

HALF_PRECISION = """
@nki.jit
def kernel(x):
    tile = nl.load(x)
    square = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=square, data1=tile, data2=tile, op=nl.multiply)
    root = nl.ndarray(x.shape, dtype=nl.float16, buffer=nl.sbuf)
    nisa.activation(dst=root, op=nl.sqrt, data=square)
    out = nl.ndarray(x.shape, dtype=nl.float16, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=root)
    return out
"""

OLDER_SUMS = """
@nki.jit
def kernel(x):
    out = nl.ndarray((100, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    row, column = nl.mgrid[0:128, 0:64]
    total = nl.zeros((128, 64), dtype=nl.float32)
    for i in nl.sequential_range(3):
        tile = nl.load(x[row, i * 64 + column], mask=row < 100)
        total[...] = nl.add(total, tile)
    nl.store(out[row, column], nl.multiply(total, 0.5), mask=row < 100)
    return out
"""

OLDER_MASKED = """
@nki.jit
def kernel(x):
    row, column = nl.mgrid[0:64, 0:64]
    scores = nl.load(x)
    kept = nisa.affine_select(pred=row >= column, on_true_tile=scores,
                              on_false_value=-1e9)
    result = nl.exp(nl.subtract(kept, nl.max(kept, axis=1, keepdims=True)))
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, result)
    return out
"""

KERNELS = {
    "matmul": RightKernel("[draw(384, 128), draw(384, 128)]", "lambda x, w: x.T @ w",
                          MATMUL),
    "softmax": RightKernel(
        "[draw(128, 64) * 60]",
        "lambda x: np.exp(x - x.max(1, keepdims=True))"
        " / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)",
        SOFTMAX),
    "doubled": RightKernel("[draw(256, 32)]", "lambda x: x + x", DOUBLED),
    "doubled bfloat16": RightKernel(
        "[draw(256, 32).astype(ml_dtypes.bfloat16)]", "lambda x: x + x", DOUBLED),
    "doubled integers": RightKernel("[whole(256, 32)]", "lambda x: x + x", DOUBLED),
    "on the device": RightKernel(
        "[draw(256, 32), np.array([[256]], np.int32)]",
        "lambda x, n: x + x", ON_DEVICE),
    "integers on the device": RightKernel(
        "[np.full((256, 32), 2, np.int32), np.array([[256]], np.int32)]",
        "lambda x, n: x + x", ON_DEVICE),
    "halved": RightKernel("[draw(64, 32)]", "lambda x: x / 32", HALVED, seconds=15.0),
    "two cores": RightKernel(
        "[draw(128, 32)]", "lambda x: np.concatenate([x[:64], x[:64]]) * 2",
        TWO_CORES, grid=(2,)),
    "gathered": RightKernel(
        "[draw(96, 32), np.random.permutation(96)[:64, None].astype(np.uint32)]",
        "lambda x, rows: x[rows[:, 0]]", GATHERED),
    "blocks": RightKernel("[draw(128, 16, 16)]", "lambda x: x.sum(2)", BLOCKS),
    "half precision": RightKernel(
        "[draw(128, 16) * 500]", "lambda x: abs(x).astype(np.float16)", HALF_PRECISION),
    "older sums": RightKernel(
        "[draw(100, 192)]",
        "lambda x: (x[:, :64] + x[:, 64:128] + x[:, 128:]) * np.float32(0.5)",
        OLDER_SUMS, older=True),
    "older mask": RightKernel(
        "[draw(64, 64)]",
        "lambda x: np.exp(np.where(np.tri(64, dtype=bool), x, np.float32(-1e9))"
        " - np.where(np.tri(64, dtype=bool), x, np.float32(-1e9))"
        ".max(1, keepdims=True))",
        OLDER_MASKED, older=True),
}  # fmt: skip

BUGS: dict[str, Bug] = {
    # ---- Sums and products.
    "a dropped tile of K": Bug("matmul", "range(3)", "range(2)", WRONG),
    "accumulate=False in a K loop": Bug(
        "matmul", "accumulate=k > 0", "accumulate=False", "product-unread"
    ),
    "an accumulation that nothing begins": Bug(
        "matmul", "accumulate=k > 0", "accumulate=True", "limit"
    ),
    "an accumulation onto zeros": Bug(
        "matmul",
        "accumulate=k > 0",
        "accumulate=bool(k or nisa.memset(total, 0))",
        "accumulate-onto-values",
    ),
    "the transposed product": Bug(
        "matmul",
        "stationary=left, moving=right",
        "stationary=right, moving=left",
        WRONG,
    ),
    "the same tile in every turn": Bug(
        "matmul", "nl.load(w[rows])", "nl.load(w[:128])", WRONG
    ),
    "an operand twice": Bug("matmul", "moving=right", "moving=left", "input-ignored"),
    "another operator": Bug("doubled", "op=nl.add", "op=nl.multiply", WRONG),
    # ---- Sizes and memories.
    "a matmul of too many columns": Bug(
        "matmul", "(x[rows])", "(x.reshape((128, 384)))", "limit"
    ),
    "more than a bank of PSUM": Bug(
        "matmul",
        "(128, 128), dtype=nl.float32",
        "(128, 1024), dtype=nl.float32",
        "limit",
    ),
    "256 partitions": Bug("doubled", "nl.load(x[rows])", "nl.load(x)", "limit"),
    "DMA out of PSUM": Bug("matmul", "src=tile)", "src=total)", "documented-limit"),
    "a tile of SBUF returned": Bug(
        "matmul", "return out", "return tile", "result-out-of-reach"
    ),
    "a result in private memory of a core": Bug(
        "matmul", "buffer=nl.shared_hbm", "buffer=nl.private_hbm", "result-out-of-reach"
    ),
    # ---- Functions and reductions.
    "no maximum subtracted": Bug("softmax", "bias=most, ", "", WRONG),
    "another scale": Bug("softmax", "scale=1.0", "scale=1.001", WRONG),
    "no sum of the row": Bug("softmax", "operand0=part", "operand0=1.0", WRONG),
    "another axis": Bug("blocks", "data=rows, axis=2", "data=rows, axis=1", "limit"),
    "another axis of a square": Bug(
        "blocks", "data=rows", "data=rows.ap([[256, 128], [1, 16], [16, 16]])", WRONG
    ),
    "FP16 overflows": Bug(
        "half precision", "dtype=nl.float32", "dtype=nl.float16", WRONG
    ),
    # ---- What nothing wrote.
    "a tile that nothing wrote": Bug(
        "softmax", "data=rows, axis", "data=nl.ndarray(x.shape, x.dtype), axis", "limit"
    ),
    "half a result, float32": Bug("doubled", "range(4)", "range(2)", "result-in-part"),
    "half a result, bfloat16": Bug(
        "doubled bfloat16", "range(4)", "range(2)", "result-in-part"
    ),
    "half a result, int32": Bug(
        "doubled integers", "range(4)", "range(2)", "result-in-part"
    ),
    "a turn of the device too few": Bug(
        "on the device", "(0, turns", "(64, turns", "unwritten-memory"
    ),
    "a turn too few, and the memory held the right number by chance": Bug(
        "integers on the device", "(0, turns", "(64, turns", "unwritten-memory"
    ),
    # ---- Loops.
    "a tile from before the loop": Bug(
        "on the device", "src=x[rows]", "src=x[0:64]", WRONG
    ),
    "a bound one too high": Bug("doubled", "range(4)", "range(5)", "limit"),
    "a bound one too high, on the device": Bug(
        "on the device", "(0, turns,", "(0, 320,", "run"
    ),
    "an endless loop of the device": Bug(
        "halved", "op0=nl.subtract", "op0=nl.add", "time"
    ),
    "an endless loop of Python": Bug(
        "halved", "    tile = nl.load(x)", "    while True: pass", "ended"
    ),
    "a sum over turns of affine_range": Bug(
        "older sums", "sequential_range", "affine_range", "loop-carried-reduction"
    ),
    "a turn too few": Bug("older sums", "range(3)", "range(2)", WRONG),
    # ---- Masks and indices.
    "no mask of a load": Bug(
        "older sums",
        "column], mask=row < 100)\n        total",
        "column])\n        total",
        "limit",
    ),
    "no mask of a store": Bug(
        "older sums", ", 0.5), mask=row < 100", ", 0.5)", "limit"
    ),
    "a mask one off": Bug("older mask", "row >= column", "row > column", WRONG),
    "an index beyond the rows": Bug(
        "gathered", "at = nl.load(rows)", "at = nl.add(nl.load(rows), 64)", "run"
    ),
    # ---- Order.
    "an instruction that waits for itself": Bug(
        "blocks",
        "    nisa.tensor_reduce(",
        "    done = nisa.tensor_copy(dst=rows, src=rows)\n    done.depends_on(done)\n"
        "    nisa.tensor_reduce(",
        "depends-on-cycle",
    ),
    # ---- Two cores.
    "two cores write the same rows": Bug(
        "two cores", "out[nl.ds(core * 64, 64)]", "out[0:64]", "cores-race"
    ),
    "no barrier before the other's rows": Bug(
        "two cores", "    nisa.core_barrier(halves, (0, 1))\n", "", "cores-race"
    ),
    "a barrier of one core": Bug(
        "two cores", "    nisa.core_barrier", "    if core: nisa.core_barrier", "limit"
    ),
    # ---- Python on tiles.
    "a branch on a tile": Bug(
        "halved",
        "tile = nl.load(x)",
        "tile = nl.load(x)\n    if tile > 0: pass",
        "limit",
    ),
    "NumPy on a tile": Bug("older mask", "nl.exp(", "np.exp(", "limit"),
    "a misspelled keyword": Bug(
        "matmul", "stationary=left", "stationery=left", "limit"
    ),
}
