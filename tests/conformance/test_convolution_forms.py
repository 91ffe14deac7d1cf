"""Every form of a convolution, against the specification's sum.

On small integers, whose sums are exact in any order and every dtype; the order itself
is tested in `test_oracle_contraction`.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from jax import lax

import neuronjax as nj
from tests.conformance import bits
from tests.conformance.module_text import dtype_of, module, run, tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """A convolution, its shapes in the order of the layouts' letters.

    Attributes:
        image, kernel: shapes.
        layouts: of image, kernel and result, as `lax.conv_general_dilated` spells them.
        strides, padding, lhs_dilation, rhs_dilation: per spatial dimension.
        features, batches: numbers of groups.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    layouts: tuple[str, str, str]
    strides: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    lhs_dilation: tuple[int, ...] = ()
    rhs_dilation: tuple[int, ...] = ()
    features: int = 1
    batches: int = 1

    @property
    def rank(self) -> int:
        return len(self.image) - 2

    def filled(self) -> Form:
        """With the defaults spelled out."""
        ones = (1,) * self.rank
        return dataclasses.replace(
            self,
            strides=self.strides or ones,
            padding=self.padding or ((0, 0),) * self.rank,
            lhs_dilation=self.lhs_dilation or ones,
            rhs_dilation=self.rhs_dilation or ones,
        )


FORMS = {
    "no space": Form(image=(3, 4), kernel=(5, 4), layouts=("NC", "OI", "NC")),
    "1-D, asymmetric, negative": Form(
        image=(2, 3, 9),
        kernel=(4, 3, 3),
        layouts=("NCH", "OIH", "NCH"),
        strides=(2,),
        padding=((-1, 3),),
    ),
    "both dilated": Form(
        image=(2, 5, 4, 3),
        kernel=(2, 3, 3, 4),
        layouts=("NHWC", "HWIO", "NHWC"),
        padding=((2, -1), (0, 4)),
        lhs_dilation=(2, 3),
        rhs_dilation=(2, 1),
        strides=(1, 2),
    ),
    "3-D": Form(
        image=(2, 2, 4, 5, 3),
        kernel=(3, 2, 2, 3, 2),
        layouts=("NCDHW", "OIDHW", "NCDHW"),
        strides=(1, 2, 1),
        padding=((1, 0), (0, 1), (1, 1)),
    ),
    "feature groups": Form(
        image=(2, 6, 5),
        kernel=(8, 3, 2),
        layouts=("NCH", "OIH", "NCH"),
        features=2,
    ),
    "depthwise, times two": Form(
        image=(2, 5, 5, 3),
        kernel=(3, 3, 1, 6),
        layouts=("NHWC", "HWIO", "NHWC"),
        features=3,
        padding=((1, 1), (1, 1)),
    ),
    "batch groups": Form(
        image=(6, 3, 5),
        kernel=(4, 3, 2),
        layouts=("NCH", "OIH", "NCH"),
        batches=2,
    ),
    "any order of dimensions": Form(
        image=(5, 2, 4, 3),
        kernel=(3, 2, 3, 2),
        layouts=("HNWC", "IHOW", "CWNH"),
        strides=(2, 1),
    ),
    "fewer outputs than positions": Form(
        image=(2, 6, 6, 2),
        kernel=(5, 5, 2, 3),
        layouts=("NHWC", "HWIO", "NHWC"),
        rhs_dilation=(1, 1),
    ),
    "fewer outputs, dilated": Form(
        image=(1, 9, 3),
        kernel=(4, 3, 2),
        layouts=("NHC", "HIO", "NHC"),
        rhs_dilation=(2,),
        strides=(2,),
    ),
    "no window fits": Form(
        image=(2, 3, 2), kernel=(4, 3, 5), layouts=("NCH", "OIH", "NCH")
    ),
    "no channel": Form(
        image=(2, 0, 4), kernel=(3, 0, 2), layouts=("NCH", "OIH", "NCH")
    ),
}
FORMS = {name: form.filled() for name, form in FORMS.items()}


def by_definition(
    form: Form,
    image: np.ndarray,
    kernel: np.ndarray,
    *,
    reverse: bool = False,
    dtype: type = np.int64,
) -> np.ndarray:
    """The sum over positions and channels, in integers or another dtype."""
    space = sorted(set(form.layouts[0]) - set("NC"), key=form.layouts[0].index)
    s = "".join(space)
    x = _ordered(image.astype(dtype), form.layouts[0], f"NC{s}")
    k = _ordered(kernel.astype(dtype), form.layouts[1], f"OI{s}")
    if reverse:
        k = k[(slice(None), slice(None), *[slice(None, None, -1)] * form.rank)]
    x = _padded(form, x)
    images = np.split(x, form.batches, 0)
    images = [part for i in images for part in np.split(i, form.features, 1)]
    kernels = np.split(k, form.batches * form.features, 0)
    parts = [_one(form, i, w) for i, w in zip(images, kernels, strict=True)]
    return _ordered(np.concatenate(parts, axis=1), f"NC{s}", form.layouts[2])


def _ordered(x: np.ndarray, have: str, want: str) -> np.ndarray:
    return x.transpose([have.index(letter) for letter in want])


def _padded(form: Form, x: np.ndarray) -> np.ndarray:
    for axis, dilation in enumerate(form.lhs_dilation, 2):
        low, high = form.padding[axis - 2]
        length = max((x.shape[axis] - 1) * dilation + 1, 0)
        index = low + np.arange(x.shape[axis]) * dilation
        shape = (*x.shape[:axis], max(length + low + high, 0), *x.shape[axis + 1 :])
        out = np.zeros(shape, x.dtype)
        inside = (index >= 0) & (index < shape[axis])
        kept = np.moveaxis(x, axis, 0)[inside]
        np.moveaxis(out, axis, 0)[index[inside]] = kept
        x = out
    return x


def _one(form: Form, x: np.ndarray, k: np.ndarray) -> np.ndarray:
    reach = [
        (n - 1) * d + 1 for n, d in zip(k.shape[2:], form.rhs_dilation, strict=True)
    ]
    shape = [
        max((n - r) // s + 1, 0)
        for n, r, s in zip(x.shape[2:], reach, form.strides, strict=True)
    ]
    out = np.zeros((x.shape[0], k.shape[0], *shape), x.dtype)
    places = itertools.product(*map(range, shape))
    for place, position in itertools.product(places, np.ndindex(*k.shape[2:])):
        at = tuple(
            p * s + q * d
            for p, s, q, d in zip(
                place, form.strides, position, form.rhs_dilation, strict=True
            )
        )
        term = x[(slice(None), slice(None), *at)] @ k[(..., *position)].T
        out[(slice(None), slice(None), *place)] += term
    return out


#: Operands and results; float8_e4m3 holds the operands' integers exactly.
DTYPES = (
    ("bfloat16", "float32"),
    ("int8", "int32"),
    ("float32", "float32"),
    ("float8_e4m3", "float32"),
    ("int32", "int32"),
    ("float16", "float16"),
)
QUICK = DTYPES[:1]


def operands(dtype: np.dtype) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)

    def small(shape):
        return rng.integers(-3, 4, shape).astype(dtype)

    return [(small(f.image), small(f.kernel)) for f in FORMS.values()]


def convolutions(pairs, result):
    return [
        lax.conv_general_dilated(
            image,
            kernel,
            form.strides,
            form.padding,
            form.lhs_dilation,
            form.rhs_dilation,
            form.layouts,
            form.features,
            form.batches,
            preferred_element_type=result,
        )
        for (image, kernel), form in zip(pairs, FORMS.values(), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "result"),
    [d if d in QUICK else pytest.param(*d, marks=pytest.mark.slow) for d in DTYPES],
)
def test_every_form(name, result):
    pairs = operands(dtype_of(name))
    program = nj.jit(lambda pairs: convolutions(pairs, result))
    outputs = program(pairs)
    if name == "float32":
        bits.assert_same(outputs, bits.op_by_op(program, pairs))
    for (label, form), pair, out in zip(FORMS.items(), pairs, outputs, strict=True):
        want = by_definition(form, *pair)
        assert out.dtype == dtype_of(result), label
        assert out.shape == want.shape, label
        assert np.array_equal(np.asarray(out).astype(np.int64), want), label


@pytest.mark.slow
def test_windows_in_reverse():
    """`window_reversal`, which JAX never writes."""
    rng = np.random.default_rng(2)
    form = Form(
        image=(2, 5, 4, 3), kernel=(3, 2, 3, 4), layouts=("NHWC", "HWIO", "NHWC")
    ).filled()
    image, kernel = (
        rng.integers(-3, 4, s).astype(np.float32) for s in (form.image, form.kernel)
    )
    types = [tensor(x.shape, x.dtype) for x in (image, kernel)]
    want = by_definition(form, image, kernel, reverse=True)
    result = tensor(want.shape, np.float32)
    text = module(
        types,
        [
            "%0 = stablehlo.convolution(%a0, %a1) dim_numbers = "
            "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {reverse = [true, true]}"
            " {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
            f"({types[0]}, {types[1]}) -> {result}"
        ],
        [("%0", result)],
    )
    [got] = run(text, [image, kernel])
    assert np.array_equal(got, want)


def test_integers_that_wrap_and_integers_through_fp32():
    rng = np.random.default_rng(3)
    form = FORMS["1-D, asymmetric, negative"]
    image, kernel = (
        rng.integers(-(2**31), 2**31, s).astype(np.int32)
        for s in (form.image, form.kernel)
    )

    def program(image, kernel):
        return lax.conv_general_dilated(
            image, kernel, form.strides, form.padding, dimension_numbers=form.layouts
        )

    want = by_definition(form, image, kernel)
    assert np.array_equal(nj.jit(program)(image, kernel), want.astype(np.int32))
    through = nj.jit(program, policy=nj.Policy(integer_path="fp32"))(image, kernel)
    info = np.iinfo(np.int32)
    near = by_definition(form, image, kernel, dtype=np.float64)
    near = np.clip(near, info.min, info.max)
    assert np.allclose(np.asarray(through), near, rtol=1e-5)
