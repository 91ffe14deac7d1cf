"""VectorE's and ScalarE's instructions against NumPy, compiled and op by op."""

import jax
import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import isa as nisa, language as nl
from tests.oracles import nki_isa as oracle

F32, BF16, U32 = np.float32, ml_dtypes.bfloat16, np.uint32


def normal(*shape, seed=0, dtype=F32, scale=1.0):
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return values.astype(F32).astype(dtype)


def run(body, *inputs, outputs, target="trn3"):
    """Runs `body(dsts, tiles)` in a kernel; the results, the same in both modes."""

    def kernel(*arguments):
        tiles = []
        for a in arguments:
            tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=a)
            tiles.append(tile)
        dsts = []
        for shape, dtype in outputs:
            dst = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
            nisa.memset(dst=dst, value=0)
            dsts.append(dst)
        body(dsts, tiles)
        results = []
        for dst in dsts:
            out = nl.ndarray(dst.shape, dtype=dst.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=out, src=dst)
            results.append(out)
        return tuple(results)

    compiled = nki.jit(kernel).with_target(target)
    found = compiled(*inputs)
    with jax.disable_jit():
        again = compiled(*inputs)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(_bits(a), _bits(b))
    return [np.asarray(a) for a in found]


def _bits(x):
    x = np.asarray(x)
    return x.view(f"uint{8 * x.dtype.itemsize}")


def same(found, expected, dtype=F32):
    expected = oracle.write(expected, dtype).reshape(found.shape)
    np.testing.assert_array_equal(_bits(found), _bits(expected))


def close(found, expected, ulps=4, floor=1e-30):
    expected = np.asarray(expected, np.float64).reshape(found.shape)
    unit = np.maximum(np.abs(expected), floor) * 2.0**-23
    worst = np.max(np.abs(found.astype(np.float64) - expected) / unit)
    assert worst <= ulps, worst


REDUCING = ("add", "subtract", "multiply", "maximum", "minimum", "logical_xor")


@pytest.mark.slow
@pytest.mark.parametrize("op", REDUCING)
def test_tensor_reduce(op):
    scale = 1.0 if op != "multiply" else 1.02
    x, y = normal(32, 700, scale=scale), normal(32, 3, 4, 5, seed=1, dtype=BF16)

    def body(dst, tiles):
        nisa.tensor_reduce(dst[0], getattr(nl, op), tiles[0], axis=1, negate=True)
        nisa.tensor_reduce(dst[1], getattr(nl, op), tiles[1], axis=(2, 3))

    found = run(body, x, y, outputs=[((32, 1), nl.float32), ((32, 3), nl.bfloat16)])
    same(found[0], oracle.tensor_reduce(x, op, 1, negate=True))
    same(found[1], oracle.tensor_reduce(y, op, 2), BF16)


@pytest.mark.slow
def test_bit_vector_reductions():
    x = np.random.default_rng(0).integers(0, 2**16, (16, 9)).astype(np.uint16)

    def body(dst, tiles):
        nisa.tensor_reduce(dst[0], nl.bitwise_or, tiles[0], axis=1)
        nisa.tensor_partition_reduce(dst[1], nl.bitwise_and, tiles[0])

    found = run(body, x, outputs=[((16, 1), nl.uint16), ((1, 9), nl.uint16)])
    np.testing.assert_array_equal(found[0][:, 0], np.bitwise_or.reduce(x, axis=1))
    np.testing.assert_array_equal(found[1][0], np.bitwise_and.reduce(x, axis=0))


@pytest.mark.slow_except("add")
@pytest.mark.parametrize("op", ["add", "average", "maximum"])
def test_tensor_partition_reduce(op):
    x = normal(96, 20)
    operator = "average" if op == "average" else getattr(nl, op)

    def body(dst, tiles):
        nisa.tensor_partition_reduce(dst[0], operator, tiles[0])

    [found] = run(body, x, outputs=[((1, 20), nl.float32)])
    name = {"max": "maximum"}.get(op, op)
    same(found, oracle.tensor_partition_reduce(x, name))


@pytest.mark.slow
def test_accumulators_go_on_from_instruction_to_instruction():
    x, y = normal(64, 600), normal(64, 100, seed=1)
    zero = np.zeros(64, F32)

    def body(dst, tiles):
        nisa.tensor_scalar_reduce(dst[0], tiles[0], nl.multiply, 1.5, nl.add)
        nisa.tensor_scalar_reduce(
            dst[1],
            tiles[1],
            nl.add,
            0.25,
            nl.add,
            reduce_res=dst[2],
            reduce_cmd=nisa.reduce_cmd.reduce,
            reduce_res_negate=True,
        )

    shapes = [(64, 600), (64, 100), (64, 1)]
    found = run(body, x, y, outputs=[(s, nl.float32) for s in shapes])
    first, register = oracle.tensor_scalar_reduce(
        x, "multiply", 1.5, "add", zero, "reset_reduce"
    )
    second, register = oracle.tensor_scalar_reduce(
        y, "add", 0.25, "add", register, "reduce"
    )
    same(found[0], first)
    same(found[1], second)
    same(found[2], -register)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "subtract"])
def test_tensor_scalar_cumulative(op):
    x, start = normal(8, 50), normal(8, 1, seed=2)

    def body(dst, tiles):
        nisa.tensor_scalar_cumulative(
            dst[0],
            tiles[0],
            nl.add,
            getattr(nl, op),
            0.5,
            imm1=tiles[1],
            reduce_cmd=nisa.reduce_cmd.load_reduce,
        )

    [found] = run(body, x, start, outputs=[((8, 50), nl.float32)])
    expected, _ = oracle.tensor_scalar_cumulative(
        x, "add", op, 0.5, None, "load_reduce", start
    )
    same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("ops", [("multiply", "add"), ("subtract", "maximum")])
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_tensor_scan(ops, reverse):
    a, b, first = normal(32, 70), normal(32, 70, seed=1), normal(32, 1, seed=2)

    def body(dst, tiles):
        op0, op1 = (getattr(nl, op) for op in ops)
        nisa.tensor_tensor_scan(
            dst[0], tiles[0], tiles[1], tiles[2], op0, op1, reverse, not reverse
        )

    [found] = run(body, a, b, first, outputs=[((32, 70), nl.bfloat16)])
    op0, op1 = ops
    expected = oracle.tensor_tensor_scan(a, b, first, op0, op1, reverse, not reverse)
    same(found, expected, BF16)


@pytest.mark.slow
def test_scalar_tensor_tensor():
    a, b, v = normal(16, 33), normal(16, 33, seed=1, dtype=BF16), normal(16, 1, seed=2)

    def body(dst, tiles):
        nisa.scalar_tensor_tensor(
            dst[0], tiles[0], nl.multiply, tiles[2], nl.subtract, tiles[1], False, True
        )

    [found] = run(body, a, b, v, outputs=[((16, 33), nl.float16)])
    expected = oracle.scalar_tensor_tensor(a, "multiply", v, "subtract", b, False, True)
    same(found, expected, np.float16)


@pytest.mark.slow
def test_selections():
    x = normal(32, 40)
    choose = np.random.default_rng(3).integers(0, 2, (32, 40)).astype(np.uint8)
    low = np.full((32, 1), 3, F32)
    high = np.arange(32, dtype=F32)[:, None]
    old = normal(32, 40, seed=4, dtype=BF16)

    def body(dst, tiles):
        x, choose, low, high, old = tiles
        nisa.select_reduce(
            dst[0],
            choose,
            x,
            -2.0,
            reduce_res=dst[1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.range_select(
            dst[2],
            x,
            nl.greater_equal,
            nl.less,
            low,
            high,
            reduce_res=dst[3],
            range_start=2,
        )
        nisa.tensor_copy(dst[4], old)
        nisa.tensor_copy_predicated(dst[4], x, choose, reverse_pred=True)
        nisa.affine_select(
            dst[5], [[-1, 40]], 1, x, -9.0, cmp_op=nl.greater_equal, offset=4
        )

    tile, column = (32, 40), (32, 1)
    found = run(
        body,
        *(x, choose, low, high, old),
        outputs=[
            (tile, nl.float32),
            (column, nl.float32),
            (tile, nl.bfloat16),
            (column, nl.float32),
            (tile, nl.bfloat16),
            (tile, nl.float32),
        ],
    )
    zero = np.zeros(32, F32)
    chosen, best = oracle.select_reduce(choose, x, -2.0, zero, "reset_reduce")
    same(found[0], chosen)
    same(found[1], best)
    ranged, best = oracle.range_select(
        x, "greater_equal", "less", low, high, zero, "reset_reduce", start=2
    )
    same(found[2], ranged, BF16)
    assert found[2][0, 0] == -np.inf  # FP32_MIN rounded to BF16
    same(found[3], best)
    copied = oracle.tensor_copy_predicated(old, x, choose, reverse=True)
    same(found[4], copied, BF16)
    below = oracle.affine_select([[-1, 40]], 1, x, -9.0, "greater_equal", 4)
    same(found[5], below)


@pytest.mark.slow
def test_statistics():
    x = normal(16, 101, scale=3)

    def body(dst, tiles):
        nisa.bn_stats(dst[0][:, 0:6], tiles[0][:, 0:50])
        nisa.bn_stats(dst[0][:, 6:12], tiles[0][:, 50:101])
        nisa.bn_aggr(dst[1], dst[0])

    found = run(body, x, outputs=[((16, 12), nl.float32), ((16, 2), nl.float32)])
    parts = [oracle.bn_stats(x[:, :50]), oracle.bn_stats(x[:, 50:])]
    close(found[0], np.concatenate(parts, axis=1), ulps=60, floor=1e-2)
    close(found[1][:, 0], x.astype(np.float64).mean(axis=1), ulps=60, floor=1e-1)
    close(found[1][:, 1], x.astype(np.float64).var(axis=1), ulps=60)


@pytest.mark.slow
def test_the_eight_largest():
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (8, 30)).astype(F32)  # with ties
    values = np.array([[3, 8, 8, 8, 8, 8, 8, 8]], F32)
    data = np.array([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]], F32)

    def body(dst, tiles):
        nisa.max8(dst[0], tiles[0])
        nisa.nc_find_index8(dst[1], tiles[0], dst[0])
        nisa.nc_match_replace8(dst[2], tiles[0], dst[0], -100.0, dst_idx=dst[3])
        nisa.nc_match_replace8(dst[4], tiles[1], tiles[2], 0.0, dst_idx=dst[5])
        nisa.nc_find_index8(dst[6], tiles[1], tiles[0][0:1, 0:8])

    shapes = [
        ((8, 8), nl.float32),
        ((8, 8), nl.uint32),
        ((8, 30), nl.float32),
        ((8, 8), nl.uint32),
        ((1, 11), nl.float32),
        ((1, 8), nl.uint16),
        ((1, 8), nl.uint16),
    ]
    found = run(body, x, data, values, outputs=shapes)
    best = oracle.max8(x)
    same(found[0], best)
    np.testing.assert_array_equal(found[1], oracle.nc_find_index8(x, best))
    replaced, index = oracle.nc_match_replace8(x, best, -100.0)
    same(found[2], replaced)
    np.testing.assert_array_equal(found[3], index)
    assert found[5].tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]  # of the reference
    absent = oracle.nc_find_index8(data, x[0:1, 0:8], np.uint16)
    np.testing.assert_array_equal(found[6], absent)
    assert 0xFFFF in absent


@pytest.mark.slow
def test_nc_stream_shuffle_by_quadrants():
    x, old = normal(64, 5), normal(64, 5, seed=1)
    mask = [(7 * p) % 32 for p in range(32)]
    mask[4] = mask[9] = 255

    def body(dst, tiles):
        nisa.tensor_copy(dst[0], tiles[1])
        nisa.nc_stream_shuffle(dst[0], tiles[0], mask)

    [found] = run(body, x, old, outputs=[((64, 5), nl.float32)])
    np.testing.assert_array_equal(found, oracle.nc_stream_shuffle(old, x, mask))


@pytest.mark.slow
def test_exponential_and_reciprocal():
    x, most = normal(16, 80, scale=4), normal(16, 1, seed=1)

    def body(dst, tiles):
        nisa.exponential(
            dst[0],
            tiles[0],
            tiles[1],
            reduce_res=dst[1],
            reduce_cmd=nisa.reduce_cmd.load_reduce,
            reduce_init=2.0,
        )
        nisa.reciprocal(dst[2], tiles[0])

    shapes = [((16, 80), nl.float32), ((16, 1), nl.float32), ((16, 80), nl.float32)]
    found = run(body, x, most, outputs=shapes)
    close(found[0], np.exp((x - most).astype(np.float64)))
    zero = np.zeros(16, F32)
    same(
        found[1], oracle.register_after(found[0], zero, "load_reduce", "add", F32(2.0))
    )
    close(found[2], 1 / x.astype(np.float64), ulps=1)


RESTRICTED = {"log", "sqrt", "rsqrt"}
FUNCTIONS = sorted(oracle.ACTIVATIONS)


@pytest.mark.slow
def test_activation_functions():
    x = normal(8, 200, scale=1.4)

    def body(dst, tiles):
        for n, name in enumerate(FUNCTIONS):
            data = tiles[1] if name in RESTRICTED else tiles[0]
            nisa.activation(dst[n], getattr(nl, name), data)

    positive = np.abs(x) + F32(0.01)
    found = run(body, x, positive, outputs=[((8, 200), nl.float32) for _ in FUNCTIONS])
    for name, values in zip(FUNCTIONS, found, strict=True):
        data = positive if name in RESTRICTED else x
        if name == "arctan":
            inside = np.abs(data) < np.pi / 2
            data, values = data[inside], values[inside]
        if name == "sin":
            inside = np.abs(data) < np.pi
            data, values = data[inside], values[inside]
        expected = oracle.activation(data, name)
        # Compositions lose where two terms cancel: against the size of the terms.
        close(values, expected, ulps=12, floor=0.05)


@pytest.mark.slow
def test_activation_reduce_and_activate2():
    x, bias = normal(16, 90), normal(16, 1, seed=1)

    def body(dst, tiles):
        nisa.activation_reduce(
            dst[0], nl.copy, tiles[0], nl.add, dst[1], bias=tiles[1], scale=0.5
        )
        nisa.activate2(
            dst[2],
            nl.relu,
            tiles[0],
            2.0,
            tiles[1],
            nl.multiply,
            nl.subtract,
            reverse1=True,
            reduce_op=nl.maximum,
            reduce_res=dst[3],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        nisa.activate2(
            dst[4], nl.prelu, tiles[0], 0.0, 0.0, nl.bypass, nl.bypass, relu_param=0.25
        )

    tile, column = ((16, 90), nl.float32), ((16, 1), nl.float32)
    found = run(body, x, bias, outputs=[tile, column, tile, column, tile])
    linear = oracle.activation(x, "copy", 0.5, bias).astype(F32)
    zero = np.zeros(16, F32)
    same(found[0], linear)
    same(found[1], oracle.register_after(linear, zero, "reset_reduce", "add"))
    inner = oracle.tensor_scalar(x, "multiply", 2.0, "subtract", bias, reverse1=True)
    expected = np.maximum(inner, F32(0))
    same(found[2], expected)
    same(found[3], oracle.register_after(expected, zero, "reset_reduce", "maximum"))
    same(found[4], np.where(x < 0, x * F32(0.25), x))


WRONG = {
    "axis": lambda d, t: nisa.tensor_reduce(d[0], nl.add, t[0], axis=0),
    "negate": lambda d, t: nisa.tensor_reduce(
        d[0], nl.bitwise_or, t[0], axis=1, negate=True
    ),
    "operator": lambda d, t: nisa.tensor_reduce(d[0], nl.exp, t[0], axis=1),
    "load_reduce": lambda d, t: nisa.tensor_scalar_reduce(
        t[0], t[0], nl.add, 1.0, nl.add, reduce_cmd=nisa.reduce_cmd.load_reduce
    ),
    "mask": lambda d, t: nisa.nc_stream_shuffle(t[0], t[0], [99] * 32),
    "triples": lambda d, t: nisa.bn_aggr(t[0][:, 0:2], t[0][:, 0:5]),
    "pair": lambda d, t: nisa.activate2(
        t[0], nl.relu, t[0], 1.0, 1.0, nl.add, nl.multiply
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_instruction_and_the_line(case):
    def body(dst, tiles):
        WRONG[case](dst, tiles)

    with pytest.raises(InvalidProgramError, match=r"nisa\.") as error:
        run(body, normal(8, 16), outputs=[((8, 1), nl.float32)])
    assert "test_vector_instructions.py:" in str(error.value)
