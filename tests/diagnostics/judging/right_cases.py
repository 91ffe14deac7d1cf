"""A hundred right kernels, made of few forms: each with what makes it a wrong one.

The forms are those of public kernels: chains of functions, reductions, normalisations,
matmuls in several orders of their tiles, transposes, scans, gathers and masks, of both
styles, in four dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.diagnostics.judging.bug_cases import RightKernel


class RightCase(NamedTuple):
    """One kernel.

    Attributes:
        kernel: it and its reference.
        before, after: the texts that make it wrong: a term less, another constant.
    """

    kernel: RightKernel
    before: str
    after: str


FLOATS = ("float32", "bfloat16", "float16")
STYLES = {"newer": False, "older": True}


def drawn(*shapes: tuple[int, ...], dtype: str = "float32") -> str:
    """The text of inputs of these shapes."""
    kind = f"ml_dtypes.{dtype}" if dtype[:6] in ("bfloat", "float8") else f"np.{dtype}"
    each = (f"draw({', '.join(map(str, s))}).astype({kind})" for s in shapes)
    return f"[{', '.join(each)}]"


def body(lines: str, shape: str = "x.shape", dtype: str = "x.dtype") -> str:
    """A kernel that stores `z`."""
    inner = "\n".join(f"    {line}" for line in lines.strip().splitlines())
    return f"""
@nki.jit
def kernel(x, w=None):
{inner}
    out = nl.ndarray({shape}, dtype={dtype}, buffer=nl.shared_hbm)
    nl.store(out, nl.copy(z, dtype={dtype}))
    return out
"""


# Of nl -> of NumPy, where x is drawn from a normal distribution.
_FUNCTIONS = {
    "exp(x)": "np.exp(x)",
    "tanh(x)": "np.tanh(x)",
    "square(x)": "x * x",
    "relu(x)": "np.maximum(x, 0)",
    "sqrt(nl.abs(x))": "np.sqrt(abs(x))",
    "log(nl.add(nl.abs(x), 1.0))": "np.log(abs(x) + np.float32(1))",
    "sigmoid(x)": "1 / (1 + np.exp(-x))",
    "silu(x)": "x / (1 + np.exp(-x))",
}


def _chains() -> Iterator[tuple[str, RightCase]]:
    shapes = [(128, 64), (100, 33), (7, 256)]
    for n, (function, meaning) in enumerate(_FUNCTIONS.items()):
        for m, dtype in enumerate(FLOATS):
            for style, older in STYLES.items():
                lines = "a = nl.copy(nl.load(x), dtype=nl.float32)\n"
                lines += f"f = nl.{function.replace('x)', 'a)', 1)}"
                lines += "\nz = nl.add(nl.multiply(f, 1.5), a)"
                inputs = drawn(shapes[(n + m) % 3], dtype=dtype)
                forward = f"lambda x: ({meaning} * np.float32(1.5) + x).astype(x.dtype)"
                kernel = RightKernel(inputs, forward, body(lines), older)
                name = f"{function.split('(')[0]} {dtype} {style}"
                yield name, RightCase(kernel, "f, 1.5", "f, 1.6")


_ROWS = {
    "sum": ("z = nl.sum(a, axis=1, keepdims=True)", "x.sum(1, keepdims=True)"),
    "maximum": ("z = nl.max(a, axis=1, keepdims=True)", "x.max(1, keepdims=True)"),
    "mean": ("z = nl.multiply(nl.sum(a, axis=1, keepdims=True), 1 / 64)",
             "x.mean(1, keepdims=True)"),
    "mean of squares": (
        "z = nl.multiply(nl.sum(nl.multiply(a, a), axis=1, keepdims=True), 1 / 64)",
        "(x * x).mean(1, keepdims=True)"),
}  # fmt: skip
_NORMS = {
    "softmax": (
        "e = nl.exp(nl.subtract(a, nl.max(a, axis=1, keepdims=True)))\n"
        "z = nl.divide(e, nl.sum(e, axis=1, keepdims=True))",
        "np.exp(x - x.max(1, keepdims=True))"
        " / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)"),
    "rmsnorm": (
        "s = nl.multiply(nl.sum(nl.multiply(a, a), axis=1, keepdims=True), 1 / 64)\n"
        "z = nl.multiply(a, nl.rsqrt(nl.add(s, 1e-5)))",
        "x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(1e-5))"),
    "layernorm": (
        "c = nl.subtract(a, nl.multiply(nl.sum(a, axis=1, keepdims=True), 1 / 64))\n"
        "s = nl.multiply(nl.sum(nl.multiply(c, c), axis=1, keepdims=True), 1 / 64)\n"
        "z = nl.multiply(c, nl.rsqrt(nl.add(s, 1e-5)))",
        "(x - x.mean(1, keepdims=True))"
        " / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5))"),
}  # fmt: skip


def _rows() -> Iterator[tuple[str, RightCase]]:
    for forms, shape in ((_ROWS, "(x.shape[0], 1)"), (_NORMS, "x.shape")):
        for form, (lines, meaning) in forms.items():
            for dtype in ("float32", "bfloat16"):
                for style, older in STYLES.items():
                    wide = "a = nl.copy(nl.load(x[:, 0:64]), dtype=nl.float32)\n"
                    text = body(wide + lines, shape)
                    forward = (
                        f"lambda x: (lambda x: {meaning})"
                        "(x.astype(np.float32)).astype(x.dtype)"
                    )
                    inputs = drawn((96, 64), dtype=dtype)
                    kernel = RightKernel(inputs, forward, text, older)
                    yield (
                        f"{form} {dtype} {style}",
                        RightCase(
                            kernel,
                            "nl.load(x[:, 0:64]), dtype=nl.float32)",
                            "nl.load(x[:, 0:64]), dtype=nl.float32)\n"
                            f"    a = nl.{_MISTAKE[form]}",
                        ),
                    )


# What a wrong one does to its rows: a norm does not see a factor.
_MISTAKE = {
    **dict.fromkeys(_ROWS, "multiply(a, 1.1)"),
    "softmax": "multiply(a, 1.1)",
    "rmsnorm": "add(a, 0.1)",
    "layernorm": "multiply(a, a)",
}

_TOTAL = "total = nl.{make}((128, 256), dtype=nl.float32, buffer=nl.{memory})\n"
_IN_PSUM = (
    _TOTAL.format(make="ndarray", memory="psum")
    + """for k in {order}:
    at = nl.ds(k * {size}, {size})
    nisa.nc_matmul(total, stationary=nl.load(x[at]), moving=nl.load(w[at]))
z = nl.copy(total)"""
)
_IN_SBUF = (
    _TOTAL.format(make="zeros", memory="sbuf")
    + """for k in {order}:
    at = nl.ds(k * {size}, {size})
    part = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(part, stationary=nl.load(x[at]), moving=nl.load(w[at]))
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
z = total"""
)
_OLDER_PRODUCT = (
    _TOTAL.format(make="zeros", memory="psum")
    + """for k in {order}:
    rows = slice(k * {size}, (k + 1) * {size})
    left, right = nl.load(x[rows, 0:128]), nl.load(w[rows, 0:256])
    total += nl.matmul(left, right, transpose_x=True)
z = total"""
)
_PRODUCTS = {
    "in order": (_IN_PSUM, "[0, 1, 2]", "[0, 1]", 128, False),
    "backwards": (_IN_PSUM, "[2, 1, 0]", "[2, 1]", 128, False),
    "in small tiles": (_IN_PSUM, "range(12)", "range(11)", 32, False),
    "in SBUF": (_IN_SBUF, "[1, 0, 2]", "[1, 0]", 128, False),
    "older": (_OLDER_PRODUCT, "range(3)", "range(2)", 128, True),
}


def _products() -> Iterator[tuple[str, RightCase]]:
    for form, (lines, order, fewer, size, older) in _PRODUCTS.items():
        for dtype in (*FLOATS, "float8_e5m2"):
            result = "nl.float32" if dtype[:6] == "float8" else "x.dtype"
            kind = "np.float32" if dtype[:6] == "float8" else "x.dtype"
            text = body(lines.format(order=order, size=size), "(128, 256)", result)
            forward = (
                "lambda x, w: (x.astype(np.float32).T @ w.astype(np.float32))"
                f".astype({kind})"
            )
            inputs = drawn((384, 128), (384, 256), dtype=dtype)
            kernel = RightKernel(inputs, forward, text.replace("w=None", "w"), older)
            yield (
                f"matmul {form} {dtype}",
                RightCase(kernel, f"in {order}", f"in {fewer}"),
            )


_TURNED = {
    "on the tensor engine": (
        "a = nl.load(x)\nt = nl.ndarray((96, 64), dtype=x.dtype, buffer=nl.psum)\n"
        "nisa.nc_transpose(t, a)\nz = nl.multiply(nl.copy(t), 2.0)", False),
    "by the language": ("z = nl.multiply(nl.transpose(nl.load(x)), 2.0)", False),
    "older": ("z = nl.multiply(nl.transpose(nl.load(x)), 2.0)", True),
}  # fmt: skip


def _others() -> Iterator[tuple[str, RightCase]]:
    for form, (lines, older) in _TURNED.items():
        for dtype in ("float32", "bfloat16"):
            forward = "lambda x: (x.T * np.float32(2)).astype(x.dtype)"
            text = body(lines, "(96, 64)")
            kernel = RightKernel(drawn((64, 96), dtype=dtype), forward, text, older)
            yield f"transpose {form} {dtype}", RightCase(kernel, "2.0", "2.1")
    scan = """a = nl.copy(nl.load(x), dtype=nl.float32)
z = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
ones = nl.full(x.shape, 1.0, dtype=nl.float32)
nisa.tensor_tensor_scan(z, ones, a, initial=0.0, op0=nl.multiply, op1=nl.add)"""
    for dtype in ("float32", "bfloat16"):
        forward = (
            "lambda x: np.cumsum(x.astype(np.float32), axis=1, dtype=np.float32)"
            ".astype(x.dtype)"
        )
        kernel = RightKernel(drawn((64, 96), dtype=dtype), forward, body(scan))
        yield f"scan {dtype}", RightCase(kernel, "initial=0.0", "initial=0.5")
    for dtype in FLOATS:
        inputs = drawn((96, 32), dtype=dtype)[:-1]
        inputs += ", np.random.permutation(96)[:64, None].astype(np.uint32)]"
        lines = """z = nl.ndarray((64, 32), dtype=x.dtype, buffer=nl.sbuf)
rows = x.ap([[32, 64], [1, 32]], vector_offset=nl.load(w))
nisa.dma_copy(dst=z, src=rows)"""
        text = body(lines, "(64, 32)").replace("w=None", "w")
        kernel = RightKernel(inputs, "lambda x, w: x[w[:, 0]]", text)
        yield f"gather {dtype}", RightCase(kernel, "src=rows", "src=x[0:64]")
    mask = """a = nl.load(x)
z = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
nisa.affine_select(z, pattern=[[-1, 64]], channel_multiplier=1, on_true_tile=a,
    on_false_value=0.0, cmp_op=nl.greater_equal, offset=0)"""
    older_mask = """row, column = nl.mgrid[0:64, 0:64]
a = nl.load(x)
z = nisa.affine_select(pred=row >= column + 0, on_true_tile=a, on_false_value=0.0)"""
    masks = {"newer": (mask, "offset=0", "offset=1"),
             "older": (older_mask, "column + 0", "column + 1")}  # fmt: skip
    for style, (lines, before, after) in masks.items():
        for dtype in ("float32", "bfloat16"):
            forward = "lambda x: np.where(np.tri(64, dtype=bool), x, x * 0)"
            inputs = drawn((64, 64), dtype=dtype)
            kernel = RightKernel(inputs, forward, body(lines), STYLES[style])
            yield f"mask {dtype} {style}", RightCase(kernel, before, after)


CASES = {
    name: case for form in (_chains, _rows, _products, _others) for name, case in form()
}
