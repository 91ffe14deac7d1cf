"""Derived tolerances: right results pass in every order, wrong ones are seen.

The right results are made here, in FP32 NumPy with orders of addition of their own;
nothing of the implementation is used but `error_bounds` and `check`.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronjax.diagnostics.tolerance import Judged, Tolerance, error_bounds
from neuronjax.errors import InvalidProgramError, UnimplementedError

F32 = np.float32


def _sequential(terms: np.ndarray) -> np.ndarray:
    return np.cumsum(terms, axis=0, dtype=F32)[-1]


def _pairwise(terms: np.ndarray) -> np.ndarray:
    while len(terms) > 1:
        half = len(terms) // 2
        terms = np.concatenate(
            [terms[:half] + terms[half : 2 * half], terms[2 * half :]]
        )
    return terms[0]


def _tiles(terms: np.ndarray, rows: int = 128) -> np.ndarray:
    parts = [_sequential(terms[i : i + rows]) for i in range(0, len(terms), rows)]
    return _sequential(np.stack(parts))


def _strided(terms: np.ndarray) -> np.ndarray:
    """K index as partition times tile: a tile holds every 32nd row."""
    return _tiles(np.concatenate([terms[i::32] for i in range(32)]))


def _shuffled(terms: np.ndarray) -> np.ndarray:
    return _sequential(terms[np.random.default_rng(7).permutation(len(terms))])


ADDITIONS = {
    "sequential": _sequential,
    "reversed": lambda terms: _sequential(terms[::-1]),
    "pairwise": _pairwise,
    "tiles of 128": _tiles,
    "strided tiles": _strided,
    "shuffled": _shuffled,
}


def _fused(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply-adds of one rounding, in blocks of 64."""
    parts = []
    for start in range(0, a.shape[1], 64):
        total = np.zeros((a.shape[0], b.shape[1]), F32)
        for k in range(start, min(start + 64, a.shape[1])):
            exact = np.multiply.outer(a[:, k].astype(float), b[k].astype(float))
            total = (total + exact).astype(F32)
        parts.append(total)
    return _sequential(np.stack(parts))


class InOrder:
    """NumPy in FP32, with the sums of one order."""

    def __init__(self, order: str) -> None:
        self.order = order
        self.add = ADDITIONS.get(order, _sequential)

    def __getattr__(self, name: str):
        return getattr(np, name)

    def sum(self, x, axis, keepdims=False):
        total = self.add(np.moveaxis(x, axis, 0))
        return np.expand_dims(total, axis) if keepdims else total

    def mean(self, x, axis, keepdims=False):
        return self.sum(x, axis, keepdims) * F32(1 / x.shape[axis])

    def matmul(self, a, b):
        if self.order == "fused":
            return _fused(a, b)
        return self.add(a.T[:, :, None] * b[:, None, :])


def _rmsnorm_matmul(np_, x, w, g):
    rms = np_.sqrt(np_.mean(x * x, axis=1, keepdims=True) + F32(1e-5))
    return np_.matmul(x / rms * g, w)


def _attention(np_, q, k, v):
    scores = np_.matmul(q, k.T) / F32(8)
    weights = np_.exp(scores - np_.max(scores, axis=1, keepdims=True))
    return np_.matmul(weights / np_.sum(weights, axis=1, keepdims=True), v)


def _gated(np_, x, up, gate, down):
    gated = np_.matmul(x, gate)
    return np_.matmul(gated / (1 + np_.exp(-gated)) * np_.matmul(x, up), down)


def _layernorm(np_, x, g):
    centred = x - np_.mean(x, axis=1, keepdims=True)
    spread = np_.mean(centred * centred, axis=1, keepdims=True)
    return np_.where(g > 0, centred / np_.sqrt(spread + F32(1e-3)), np_.tanh(x))


PROGRAMS = {
    "rmsnorm_matmul": (_rmsnorm_matmul, [(32, 512), (512, 24), (512,)]),
    "attention": (_attention, [(24, 64), (160, 64), (160, 32)]),
    "gated": (_gated, [(16, 128), (128, 192), (128, 192), (192, 40)]),
    "layernorm": (_layernorm, [(48, 768), (768,)]),
}


def _normal(shapes, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(F32) for shape in shapes]


def _bounds(program, inputs, **options):
    options = {"functions": "emulated"} | options
    return error_bounds(lambda *x: program(np, *x), inputs, **options)


@pytest.mark.parametrize("order", [*ADDITIONS, "fused"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_order_is_within(name, order):
    program, shapes = PROGRAMS[name]
    inputs = _normal(shapes, seed=len(order))
    verdict = _bounds(program, inputs).check(program(InOrder(order), *inputs))
    assert verdict, verdict


def _data(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(3)
    normal = rng.standard_normal(shape)
    made = {
        "normal": normal,
        "positive": np.abs(normal),
        "ramp": np.linspace(-1, 1, shape[-1]) * np.ones(shape),
        "wide": normal * 2.0 ** rng.integers(-20, 20, shape),
        "tiny": normal * 1e-30,
        "constant": np.full(shape, 0.1),
        "cancelling": np.concatenate([normal, -normal], -1)[..., : shape[-1]],
    }
    return made[kind].astype(F32)


KINDS = ("normal", "positive", "ramp", "wide", "tiny", "constant", "cancelling")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ADDITIONS)
def test_sums_of_all_kinds_of_numbers(kind, order):
    x = _data(kind, (64, 4096))
    tolerance = error_bounds(lambda x: np.sum(x, axis=1), [x])
    verdict = tolerance.check(InOrder(order).sum(x, 1))
    assert verdict, verdict


@pytest.mark.parametrize("kind", KINDS)
def test_contractions_of_all_kinds_of_numbers(kind):
    a, b = _data(kind, (16, 1500)), _data(kind, (12, 1500)).T
    tolerance = error_bounds(np.matmul, [a, b])
    for order in (*ADDITIONS, "fused"):
        verdict = tolerance.check(InOrder(order).matmul(a, b))
        assert verdict, f"{order}: {verdict}"


ELEMENTWISE = (
    lambda x, y: x * y - x,
    lambda x, y: x / (1 + np.abs(y)),
    lambda x, y: np.exp(-x * x) + y,
    lambda x, y: np.maximum(x, y) * 3,
    lambda x, y: np.where(x > y, x, y * y),
    lambda x, y: np.sqrt(np.abs(x)) + np.tanh(y),
    lambda x, y: np.clip(x, -1, 1) - np.square(y),
    lambda x, y: np.log(1 + x * x) * np.cos(y),
    lambda x, y: np.concatenate([x[:, ::2], y[:, 1::2]], axis=1),
    lambda x, y: np.flip(x, 1) + y.reshape(-1, 1).reshape(y.shape),
    lambda x, y: np.sin(x) ** 3 - y**2,
    lambda x, y: x - np.max(y, axis=1, keepdims=True),
)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_are_within(seed):
    """Chains of five random steps; FP32 NumPy is one right way to compute them."""
    rng = np.random.default_rng(seed)
    steps = [ELEMENTWISE[i] for i in rng.integers(0, len(ELEMENTWISE), 5)]
    x, y = (rng.standard_normal((16, 40)).astype(F32) for _ in range(2))

    def program(x, y):
        for step in steps:
            x, y = step(x, y), x * F32(0.5)
        return x

    verdict = error_bounds(program, [x, y], functions="emulated").check(program(x, y))
    assert verdict, verdict


def _is_seen(verdict: Judged) -> bool:
    return not verdict


@pytest.mark.parametrize("n", [128, 1024, 4096])
def test_a_dropped_term_is_seen(n):
    """Of one product in a row; those below the bound are within it, as they must be."""
    a, b = _normal([(64, n), (n, 32)], seed=n)
    tolerance = error_bounds(np.matmul, [a, b])
    full = _tiles(a.T[:, :, None] * b[:, None, :])
    dropped = np.outer(a[:, n // 3], b[n // 3]).astype(F32)
    over = np.abs(full - dropped - tolerance.value) > tolerance.bound
    assert over.mean() > 0.98
    assert over[np.abs(dropped) > 2 * tolerance.bound].all()
    assert tolerance.check(full)
    assert _is_seen(tolerance.check(full - dropped))
    one = full.copy()
    one[5, 7] -= dropped[5, 7]
    assert tolerance.check(one).worst == (5, 7)


def test_swapped_rows_are_seen():
    program, shapes = PROGRAMS["rmsnorm_matmul"]
    inputs = _normal(shapes)
    wrong = program(np, *inputs)
    wrong[[3, 4]] = wrong[[4, 3]]
    verdict = _bounds(program, inputs).check(wrong)
    assert _is_seen(verdict)
    assert verdict.worst is not None
    assert verdict.worst[0] in (3, 4)
    assert verdict.refused > 40


@pytest.mark.parametrize("functions", ["emulated", "silicon"])
@pytest.mark.parametrize("n", [128, 1024, 4096])
def test_a_mean_of_one_too_many_is_seen(n, functions):
    [x] = _normal([(64, n)])

    def norm(x, count):
        return x / np.sqrt(np.sum(x * x, axis=1, keepdims=True) / count)

    tolerance = error_bounds(lambda x: norm(x, n), [x], functions=functions)
    assert tolerance.check(norm(x, F32(n)))
    assert _is_seen(tolerance.check(norm(x, F32(n - 1))))


def test_eps_left_out_is_seen_where_functions_are_exact_enough():
    """An eps of 1e-5 beside a mean square of 1 is 5e-6 of the result: less than
    ScalarE's own error, so that a chip's result cannot show it."""
    program, shapes = PROGRAMS["rmsnorm_matmul"]
    inputs = _normal(shapes)

    def without(x, w, g):
        return np.matmul(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True)) * g, w)

    assert _bounds(program, inputs, functions="silicon").check(without(*inputs))
    small = [inputs[0] * F32(0.05), *inputs[1:]]
    for functions in ("emulated", "silicon"):
        tolerance = _bounds(program, small, functions=functions)
        assert _is_seen(tolerance.check(without(*small)))
    norm = (lambda np_, x: x / np_.sqrt(np_.mean(x * x, axis=1, keepdims=True) + 1e-5),)
    exact = _bounds(norm[0], inputs[:1])
    x = inputs[0]
    assert _is_seen(exact.check(x / np.sqrt(np.mean(x * x, axis=1, keepdims=True))))


def test_a_softmax_without_its_maximum_overflows():
    [x] = _normal([(8, 64)])
    x *= 60

    def softmax(x):
        e = np.exp(x - np.max(x, axis=1, keepdims=True))
        return e / np.sum(e, axis=1, keepdims=True)

    tolerance = error_bounds(softmax, [x])
    assert tolerance.check(softmax(x))
    with np.errstate(all="ignore"):
        wrong = np.exp(x) / np.sum(np.exp(x), axis=1, keepdims=True)
    verdict = tolerance.check(wrong)
    assert verdict.non_finite > 0
    assert _is_seen(verdict)


def _bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(F32)


def test_a_bf16_intermediate_is_seen_where_fp32_is_promised():
    program, shapes = PROGRAMS["gated"]
    inputs = _normal(shapes)
    x, up, gate, down = inputs
    gated = _bf16(np.matmul(x, gate))
    wrong = np.matmul(gated / (1 + np.exp(-gated)) * np.matmul(x, up), down)
    assert _is_seen(_bounds(program, inputs, functions="silicon").check(wrong))
    assert _bounds(program, inputs, precision="bf16").check(wrong)


def test_products_in_bf16_or_in_three_parts():
    a, b = _normal([(40, 640), (640, 24)])
    rounded = np.matmul(_bf16(a), _bf16(b))
    low = np.matmul(_bf16(a), _bf16(b - _bf16(b))) + np.matmul(
        _bf16(a - _bf16(a)), _bf16(b)
    )
    tolerances = {
        products: error_bounds(np.matmul, [a, b], products=products)
        for products in ("fp32", "bf16x3", "bf16", "fp8_e4m3")
    }
    assert tolerances["bf16"].check(rounded)
    assert _is_seen(tolerances["bf16x3"].check(rounded))
    assert tolerances["bf16x3"].check(rounded + low)
    assert _is_seen(tolerances["fp32"].check(rounded + low))
    assert tolerances["fp8_e4m3"].check(rounded)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_results_stored_in_a_narrow_format(precision):
    dtype = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}[precision]
    inputs = [x.astype(dtype) for x in _normal([(24, 96), (24, 96)])]

    def program(x, y):
        return (x * y + x) / (1 + np.exp(-y))

    tolerance = error_bounds(program, inputs, precision=precision)
    assert tolerance.check(program(*inputs))
    wide = [x.astype(F32) for x in inputs]
    assert tolerance.check(program(*wide))
    # What bf16 declares is what it is rounded to, whatever is promised.
    assert error_bounds(program, inputs, precision="fp32").check(program(*inputs))


def test_both_sides_of_a_close_comparison_are_right():
    x = np.array([1.0, 2.0, 3.0], F32)

    def step(x):
        y = x / F32(3) * F32(3)
        return np.where(y >= 2, y * 10, y)

    tolerance = error_bounds(step, [x])
    assert tolerance.check(np.array([1, 20, 30], F32))
    assert tolerance.check(np.array([1, 2, 30], F32))
    assert _is_seen(tolerance.check(np.array([10, 20, 30], F32)))


def test_an_index_of_equals_is_undecided():
    x = np.array([[1, 3, 2], [5, 5, 1]], F32)
    tolerance = error_bounds(lambda x: np.argmax(x / F32(3), axis=1), [x])
    assert tolerance.check(np.array([1, 1])).undecided == 1
    assert tolerance.check(np.array([1, 0]))
    assert _is_seen(tolerance.check(np.array([2, 0])))
    exact = error_bounds(lambda x: np.argmax(x, axis=1), [x])
    assert _is_seen(exact.check(np.array([1, 1])))


def _filled(x):
    made = np.zeros((3, x.shape[1]), dtype=np.float32)
    made[0] = x[0] / 3
    made[1:] = x[1:] * np.float32(0.3)
    made += x
    made[made > 1.5] = 1.5
    return made


def test_arrays_that_a_reference_fills():
    [x] = _normal([(3, 50)])
    tolerance = error_bounds(_filled, [x])
    assert tolerance.check(_filled(x))
    wrong = _filled(x)
    wrong[1, 4] += 1e-5
    assert tolerance.check(wrong).refused == 1
    assert (tolerance.bound[tolerance.value != 1.5] > 0).all()


def test_a_recurrence_is_within():
    delta, u = _normal([(6, 40), (6, 40)])

    def scan(delta, u):
        decay = np.exp(-np.abs(delta))
        states = np.ndarray(delta.shape, dtype=np.float32)
        for i in range(delta.shape[1]):
            before = states[..., i - 1] if i > 0 else 0
            states[..., i] = decay[..., i] * before + u[..., i]
        return states

    verdict = error_bounds(scan, [delta, u], functions="emulated").check(scan(delta, u))
    assert verdict, verdict
    wrong = scan(delta, u)
    wrong[:, 20:] = scan(delta[:, 20:], u[:, 20:])
    assert _is_seen(error_bounds(scan, [delta, u]).check(wrong))


def test_einsum_dot_and_tensordot_are_matmuls():
    a, b = _normal([(4, 30, 20), (4, 20, 7)])
    want = error_bounds(np.matmul, [a, b])
    for way in (
        lambda a, b: np.einsum("bmk,bkn->bmn", a, b),
        lambda a, b: np.einsum("bmk,bkn->nbm", a, b).transpose(1, 2, 0),
        lambda a, b: np.stack([np.dot(x, y) for x, y in zip(a, b, strict=True)]),
        lambda a, b: np.stack([np.tensordot(a[i], b[i], 1) for i in range(4)]),
    ):
        found = error_bounds(way, [a, b])
        np.testing.assert_allclose(found.value, want.value, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.bound, want.bound, rtol=0.2)
    product = np.matmul(a.astype(float), b.astype(float))
    assert np.abs(want.value - product).max() < 1e-5
    rows = error_bounds(lambda a: np.stack([row @ row for row in a]), [a[0]])
    np.testing.assert_allclose(rows.value, np.sum(a[0] * a[0], axis=1), rtol=1e-5)


def test_a_kept_row_error_does_not_grow_in_a_matmul():
    """All of a row is off by one factor, so a dot of it is: not by sum |x| |w|."""
    program, shapes = PROGRAMS["rmsnorm_matmul"]
    inputs = _normal(shapes)
    tolerance = _bounds(program, inputs, functions="silicon")
    assert tolerance.relative_l2_bound < 1e-4
    coarse = program(np, *inputs) * F32(1 + 2e-5)
    assert tolerance.check(coarse)


def test_products_of_numbers_whose_squares_vanish_are_within():
    tall, wide = _normal([(120, 300), (300, 40)])
    tall = np.ldexp(tall, -np.arange(120)[:, None])
    judged = error_bounds(np.matmul, [tall, wide]).check(tall @ wide)
    assert judged, judged


def test_several_results_and_numbers_beside_arrays():
    [x] = _normal([(4, 8)])

    def program(x, eps, count):
        return {"sum": np.sum(x + eps) / count, "pair": (x * 2, x.shape[0])}

    found = error_bounds(program, [x, 1e-5, 7])
    assert found["sum"].check(program(x, 1e-5, 7)["sum"])
    assert found["pair"][0].check(x * 2)
    assert found["pair"][1].check(4)


def test_shapes_and_non_finite_numbers():
    x = np.array([1.0, np.nan, np.inf, 0.0], F32)
    tolerance = error_bounds(lambda x: x * F32(2), [x])
    assert tolerance.check(np.array([2, np.nan, np.inf, 0], F32))
    verdict = tolerance.check(np.array([2, 1, -np.inf, np.nan], F32))
    assert verdict.non_finite == 3
    with pytest.raises(InvalidProgramError, match="shape"):
        tolerance.check(np.zeros(3))


def test_an_intermediate_beyond_fp32_is_known_or_undecided():
    x = np.array([-100.0, 1.0], F32)
    gate = error_bounds(lambda x: x / (1 + np.exp(-x)), [x])
    assert gate.check(np.array([-0.0, 1 / (1 + np.exp(-1))], F32))
    huge = error_bounds(lambda x: np.exp(x * x) * F32(1e-30), [x])
    assert huge.check(np.array([np.inf, np.e * 1e-30], F32)).undecided == 1


def test_what_has_no_rule_is_named():
    [x] = _normal([(4, 4)])
    with pytest.raises(UnimplementedError, match=r"numpy.linalg.inv.*") as info:
        error_bounds(lambda x: np.linalg.inv(x), [x])
    assert "test_tolerance.py" in str(info.value)
    assert "explicit tolerance" in str(info.value)
    with pytest.raises(UnimplementedError, match="where"):
        error_bounds(lambda x: np.sum(x, where=x > 0), [x])
    with pytest.raises(UnimplementedError, match="remainder"):
        error_bounds(lambda x: x % 2, [x])
    with pytest.raises(InvalidProgramError, match="Python number"):
        error_bounds(lambda x: x * float(np.sum(x)), [x])
    with pytest.raises(InvalidProgramError, match="no table"):
        error_bounds(np.exp, [x], functions="vendor")


def test_the_chance_of_a_false_alarm_is_chosen():
    a, b = _normal([(8, 256), (256, 8)])
    narrow, wide = (
        error_bounds(np.matmul, [a, b], failure=p).bound for p in (1e-3, 1e-12)
    )
    np.testing.assert_allclose(wide / narrow, 1.93, rtol=0.01)


# -- What passes -----------------------------------------------------------------------


def test_elements_without_a_bound_may_be_wrong_by_all_of_their_size():
    value, none = np.array([3.0, 4.0]), np.float32(np.inf)

    def passing(bound, value=value, norm=0.0):
        bound = np.array(bound, np.float32)
        return Tolerance(value=value, bound=bound, l2_bound=norm).largest_passing

    assert passing([0.5, 0.0], norm=0.5) == 0.1
    assert passing([none, 0.0]) == 0.6
    assert passing([none, 3.0], norm=4.0) == 1.0
    assert passing([none, none], value=np.zeros(2)) == np.inf  # an index that ties
    assert passing([], value=np.zeros(0)) == 0.0
    assert passing([0.0, 0.0], value=np.zeros(2)) == 0.0
