"""NKI kernels that iterate, their references, and wrong kernels made of them.

A kernel's text is `PRELUDE` and its lines. A wrong kernel has another text in their
place.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.diagnostics.judging.iterated_cases import HEAD

REFERENCE = HEAD.replace(
    "one = np.float32(1)",
    """one = np.float32(1)
unit_rows = lambda a: a / np.linalg.norm(a, axis=1, keepdims=True)
share = lambda *shape: np.random.uniform(0.5, 0.99, size=shape).astype(np.float32)""",
)


class IteratedKernel(NamedTuple):
    """A reference of NumPy and a kernel that computes the same.

    Attributes:
        inputs: what `get_inputs` returns.
        names: of the inputs, and of the kernel's arguments.
        lines: of `forward`.
        kernel: lines of the kernel.
        wrong: texts of the kernel for others, with another result.
    """

    inputs: str
    names: str
    lines: str
    kernel: str
    wrong: dict[str, tuple[str, str]]


PRELUDE = """
from neuronjax import nki
from neuronjax.nki import isa as nisa, language as nl


def new(*shape):
    return nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)


def full(value, *shape):
    tile = new(*shape)
    nisa.memset(dst=tile, value=value)
    return tile


def load(x):
    return nl.load(x)


def row(x, t):
    tile = new(1, x.shape[1])
    nisa.dma_copy(dst=tile, src=x[t : t + 1])
    return tile


def plane(x, t):
    tile = new(*x.shape[1:])
    nisa.dma_copy(dst=tile, src=x[t])
    return tile


def in_sbuf(sums):
    tile = new(*sums.shape)
    nisa.tensor_copy(dst=tile, src=sums)
    return tile


def product(stationary, moving):
    shape = (stationary.shape[1], moving.shape[1])
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(sums, stationary, moving)
    return in_sbuf(sums)


def turned(x):
    shape = (x.shape[1], x.shape[0])
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=sums, data=x)
    return in_sbuf(sums)


def over(x, y):
    return nl.multiply(x, nl.reciprocal(y))


def total(x):
    return nl.sum(x, axis=1, keepdims=True)


def combined(a, x, b, y):
    return nl.add(nl.multiply(x, a), nl.multiply(y, b))


def put(rows, t, x):
    width = x.shape[1]
    nisa.tensor_copy(dst=rows[:, t * width : t * width + width], src=x)


def stored(x):
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def kernel({names}):
    {lines}
"""

KERNELS = {
    "an orthogonal matrix in twelve steps": IteratedKernel(
        "unit(draw(32, 32))", "a",
        """x = a
    for _ in range(12):
        x = 1.5 * x - 0.5 * (x @ x.T) @ x
    return x""",
        """x = load(a)
    for _ in range(12):
        rows = turned(x)
        x = combined(1.5, x, -0.5, product(product(rows, rows), x))
    return stored(x)""",
        {"half the steps": ("range(12)", "range(6)"),
         "a step less": ("range(12)", "range(11)"),
         "no cube": ("-0.5", "0.0"),
         "the sign is turned": ("-0.5", "0.5"),
         "the state is not updated": ("x = combined", "y = combined")}),
    "the inverse of a matrix": IteratedKernel(
        "(np.eye(32) * 2 + draw(32, 32) / 12).astype(np.float32)", "a",
        """x = a.T / 8
    for _ in range(9):
        x = 2 * x - x @ a @ x
    return x""",
        """m = load(a)
    x = nl.multiply(turned(m), 0.125)
    for _ in range(9):
        x = combined(2.0, x, -1.0, product(product(m, turned(x)), x))
    return stored(x)""",
        {"half the steps": ("range(9)", "range(4)"),
         "the state is not updated": ("x = combined", "y = combined"),
         "another factor": ("2.0, x", "1.9, x"),
         "the sign is turned": ("-1.0", "1.0")}),
    "a moving average of 128 rows": IteratedKernel(
        "draw(128, 16, 32)", "x",
        """s = x[0] * 0
    for t in range(128):
        s = 0.95 * s + 0.05 * x[t]
    return s""",
        """s = full(0.0, 16, 32)
    for t in range(128):
        s = combined(0.95, s, 0.05, plane(x, t))
    return stored(s)""",
        {"half the steps": ("range(128)", "range(64)"),
         "the last half alone": ("range(128)", "range(64, 128)"),
         "the state is not updated": ("s = combined", "y = combined"),
         "a turn less": ("range(128)", "range(127)"),
         "no decay": ("0.95", "1.0"),
         "the sign is turned": ("0.05", "-0.05")}),
    "linear attention that decays": IteratedKernel(
        "draw(64, 16), draw(64, 16), draw(64, 16)", "q, k, v",
        """s, out = np.zeros((16, 16), np.float32), np.zeros_like(v)
    for t in range(64):
        s = 0.9 * s + k[t][:, None] * v[t][None, :]
        out[t] = q[t] @ s
    return out""",
        """s, rows = full(0.0, 16, 16), new(1, 64 * 16)
    for t in range(64):
        s = combined(0.9, s, 1.0, product(row(k, t), row(v, t)))
        put(rows, t, product(turned(row(q, t)), s))
    out = nl.ndarray(v.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out.reshape((1, 64 * 16)), src=rows)
    return out""",
        {"no decay": ("0.9, s", "1.0, s"),
         "the state is not updated": ("s = combined", "y = combined"),
         "another row": ("row(k, t)", "row(k, 0)"),
         "an input is ignored": ("row(q, t)", "row(k, t)"),
         "no state": ("0.9, s", "0.0, s"),
         "the sign is turned": ("1.0, product", "-1.0, product")}),
    "the delta rule": IteratedKernel(
        "draw(40, 16), unit_rows(draw(40, 16)), draw(40, 16), share(40, 1)",
        "q, k, v, b",
        """s, out = np.zeros((16, 16), np.float32), np.zeros_like(v)
    for t in range(40):
        e = v[t] - k[t] @ s
        s = s + b[t] * k[t][:, None] * e[None, :]
        out[t] = q[t] @ s
    return out""",
        """s, rows = full(0.0, 16, 16), new(1, 40 * 16)
    for t in range(40):
        key = row(k, t)
        e = nl.subtract(row(v, t), product(turned(key), s))
        e = nl.multiply(e, row(b, t))
        s = nl.add(s, product(key, e))
        put(rows, t, product(turned(row(q, t)), s))
    out = nl.ndarray(v.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out.reshape((1, 40 * 16)), src=rows)
    return out""",
        {"no rate": ("e = nl.multiply(e, row(b, t))", "pass"),
         "another key": ("product(key, e)", "product(row(k, 0), e)"),
         "no correction": ("e = nl.subtract(row(v, t), product(turned(key), s))",
                           "e = row(v, t)"),
         "the update is subtracted": ("s = nl.add", "s = nl.subtract"),
         "the state is not updated": ("s = nl.add", "y = nl.add")}),
    "a scan of a state-space model": IteratedKernel(
        "draw(100, 16, 8), share(16, 8), draw(16, 8)", "x, a, c",
        """h, out = np.zeros_like(a), np.zeros((100, 16), np.float32)
    for t in range(100):
        h = a * h + x[t]
        out[t] = (c * h).sum(-1)
    return out.T""",
        """decay, weight = load(a), load(c)
    h, sums = full(0.0, 16, 8), full(0.0, 16, 100)
    for t in range(100):
        h = nl.add(nl.multiply(decay, h), plane(x, t))
        nisa.tensor_copy(dst=sums[:, t : t + 1], src=total(nl.multiply(weight, h)))
    return stored(sums)""",
        {"half the steps": ("range(100)", "range(50)"),
         "the state is not updated": ("h = nl.add", "y = nl.add"),
         "no decay": ("nl.multiply(decay, h)", "h"),
         "no weight": ("nl.multiply(weight, h)", "h"),
         "no state": ("nl.add(nl.multiply(decay, h), plane(x, t))", "plane(x, t)"),
         "the sign is turned": ("nl.add(nl.mul", "nl.subtract(nl.mul")}),
    "rows and columns of sum 1": IteratedKernel(
        "np.exp(draw(32, 32))", "x",
        """for _ in range(5):
        x = x / x.sum(1, keepdims=True)
        x = x / x.sum(0, keepdims=True)
    return x""",
        """y = load(x)
    for _ in range(5):
        y = over(y, total(y))
        y = turned(y)
        y = over(y, total(y))
        y = turned(y)
    return stored(y)""",
        {"half the steps": ("range(5)", "range(2)"),
         "rows alone": ("""y = turned(y)
        y = over(y, total(y))
        y = turned(y)""", "pass"),
         "a term is dropped": ("total(y))\n        y = turned(y)\n        y = o",
                               "total(y[:, :31]))\n        y = turned(y)\n        y = o"
                               )}),
    "the vector of the largest value": IteratedKernel(
        "(lambda a: a @ a.T / 32)(draw(32, 32)), draw(32, 1)", "a, v",
        """for _ in range(20):
        v = a @ v
        v = v / np.sqrt(np.sum(v * v))
    return v""",
        """m, y = load(a), load(v)
    for _ in range(20):
        y = turned(product(turned(m), y))
        y = over(y, nl.sqrt(total(nl.multiply(y, y))))
        y = turned(y)
    return stored(y)""",
        {"half the steps": ("range(20)", "range(10)"),
         "a step less": ("range(20)", "range(19)"),
         "the sign is turned": ("return stored(y)",
                                "return stored(nl.multiply(y, -1.0))"),
         "no norm": ("y = over(y, nl.sqrt(total(nl.multiply(y, y))))", "pass")}),
    "thirty steps of Adam": IteratedKernel(
        "draw(16, 32), draw(30, 16, 32)", "w, g",
        """m, n = w * 0, w * 0
    for t in range(30):
        m = 0.9 * m + 0.1 * g[t]
        n = 0.99 * n + 0.01 * g[t] * g[t]
        s = np.sqrt(n / (1 - 0.99 ** (t + 1))) + 1e-8
        w = w - 0.01 * (m / (1 - 0.9 ** (t + 1))) / s
    return w""",
        """x, m, n = load(w), full(0.0, 16, 32), full(0.0, 16, 32)
    for t in range(30):
        d = plane(g, t)
        m = combined(0.9, m, 0.1, d)
        n = combined(0.99, n, 0.01, nl.multiply(d, d))
        s = nl.add(nl.sqrt(nl.multiply(n, 1 / (1 - 0.99 ** (t + 1)))), 1e-8)
        x = combined(1.0, x, -0.01 / (1 - 0.9 ** (t + 1)), over(m, s))
    return stored(x)""",
        {"half the steps": ("range(30)", "range(15)"),
         "no bias is corrected": ("-0.01 / (1 - 0.9 ** (t + 1))", "-0.01"),
         "the state is not updated": ("m = combined", "q = combined"),
         "another square": ("0.01, nl.multiply(d, d)", "0.01, nl.multiply(m, m)"),
         "the sign is turned": ("-0.01 /", "0.01 /"),
         "the update is not stored": ("x = combined", "y = combined"),
         "no decay of the first": ("combined(0.9, m", "combined(0.0, m")}),
    "steps with momentum": IteratedKernel(
        "draw(16, 32), draw(64, 16, 32)", "w, g",
        """m = w * 0
    for t in range(64):
        m = 0.9 * m + g[t]
        w = w - 0.01 * (g[t] + 0.9 * m)
    return w""",
        """x, m = load(w), full(0.0, 16, 32)
    for t in range(64):
        d = plane(g, t)
        m = combined(0.9, m, 1.0, d)
        x = combined(1.0, x, -0.01, combined(1.0, d, 0.9, m))
    return stored(x)""",
        {"half the steps": ("range(64)", "range(32)"),
         "not Nesterov's": ("combined(1.0, d, 0.9, m)", "m"),
         "the state is not updated": ("m = combined", "q = combined"),
         "a term is dropped": ("combined(1.0, d, 0.9, m)", "d"),
         "the sign is turned": ("-0.01", "0.01")}),
    "twelve layers with RMSNorm": IteratedKernel(
        "draw(16, 32), draw(12, 32, 32) / 6", "x, w",
        """for i in range(12):
        y = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5)
        x = x + y @ w[i]
    return x""",
        """y = load(x)
    for i in range(12):
        s = nl.add(nl.multiply(total(nl.multiply(y, y)), 1 / 32), 1e-5)
        y = nl.add(y, product(turned(nl.multiply(y, nl.rsqrt(s))), plane(w, i)))
    return stored(y)""",
        {"half the layers": ("range(12)", "range(6)"),
         "one layer's weights": ("plane(w, i)", "plane(w, 0)"),
         "no norm": ("nl.multiply(y, nl.rsqrt(s))", "y"),
         "no residual": ("nl.add(y, product", "nl.multiply(1.0, product"),
         "a term is dropped": ("total(nl.multiply(y, y))",
                               "total(nl.multiply(y, y)[:, 0:31])"),
         "the sign is turned": ("nl.add(y, p", "nl.subtract(y, p")}),
    "forty steps of Jacobi": IteratedKernel(
        "(np.eye(32) * 8 + draw(32, 32) / 4).astype(np.float32), draw(32, 4)", "a, b",
        """x = b * 0
    for _ in range(40):
        x = x + 0.1 * (b - a @ x)
    return x""",
        """m, y = turned(load(a)), load(b)
    x = full(0.0, 32, 4)
    for _ in range(40):
        x = combined(1.0, x, 0.1, nl.subtract(y, product(m, x)))
    return stored(x)""",
        {"a quarter of the steps": ("range(40)", "range(8)"),
         "another step": ("0.1, nl", "0.3, nl"),
         "the state is not updated": ("x = combined", "z = combined"),
         "transposed": ("turned(load(a))", "load(a)")}),
    "Chebyshev's polynomials": IteratedKernel(
        "np.random.uniform(-0.99, 0.99, size=(32, 32)).astype(np.float32)", "x",
        """a, b = x * 0 + 1, x
    for _ in range(20):
        a, b = b, 2 * x * b - a
    return b""",
        """y = load(x)
    a, b = full(1.0, 32, 32), y
    for _ in range(20):
        c = nl.subtract(nl.multiply(nl.multiply(y, 2.0), b), a)
        a, b = b, c
    return stored(b)""",
        {"half the steps": ("range(20)", "range(10)"),
         "a step less": ("range(20)", "range(19)"),
         "the state is not updated": ("a, b = b, c", "b = c"),
         "the sign is turned": ("nl.subtract(nl.mul", "nl.add(nl.mul")}),
    "a memory that is asked five times": IteratedKernel(
        "draw(16, 32) / 4, draw(64, 32) / 4", "x, k",
        """for _ in range(5):
        p = x @ k.T
        p = np.exp(p - p.max(1, keepdims=True))
        x = 4 * (p / p.sum(1, keepdims=True)) @ k
    return x""",
        """y, keys = load(x), load(k)
    across = turned(keys)
    for _ in range(5):
        p = product(turned(y), across)
        p = nl.exp(nl.subtract(p, nl.max(p, axis=1, keepdims=True)))
        y = nl.multiply(product(turned(over(p, total(p))), keys), 4.0)
    return stored(y)""",
        {"half the steps": ("range(5)", "range(2)"),
         "the state is not updated": ("y = nl.multiply", "z = nl.multiply"),
         "no sum": ("over(p, total(p))", "p"),
         "a term is dropped": ("total(p)", "total(p[:, 0:63])")}),
    "the logarithm of a sum in blocks": IteratedKernel(
        "draw(32, 512) * 3", "x",
        """m, l = x[:, :1], x[:, :1] * 0
    for j in range(0, 512, 8):
        n = np.maximum(m, x[:, j : j + 8].max(1, keepdims=True))
        l = l * np.exp(m - n) + np.exp(x[:, j : j + 8] - n).sum(1, keepdims=True)
        m = n
    return m + np.log(l)""",
        """y = load(x)
    m, l = y[:, 0:1], full(0.0, 32, 1)
    for j in range(0, 512, 8):
        b = y[:, j : j + 8]
        n = nl.maximum(m, nl.max(b, axis=1, keepdims=True))
        l = nl.multiply(l, nl.exp(nl.subtract(m, n)))
        l = nl.add(l, total(nl.exp(nl.subtract(b, n))))
        m = n
    return stored(nl.add(m, nl.log(l)))""",
        {"half the steps": ("range(0, 512, 8)", "range(0, 256, 8)"),
         "no scale": ("l = nl.multiply(l, nl.exp(nl.subtract(m, n)))", "pass"),
         "the state is not updated": ("l = nl.add", "z = nl.add"),
         "a term is dropped": ("nl.subtract(b, n)", "nl.subtract(b[:, 0:7], n)"),
         "the largest alone": ("nl.add(m, nl.log(l))", "m")}),
    "gates": IteratedKernel(
        "draw(24, 16, 32), draw(24, 16, 32), draw(32, 32) / 6", "x, z, w",
        """h = x[0] * 0
    for t in range(24):
        s = 1 / (1 + np.exp(-z[t]))
        h = s * h + (1 - s) * np.tanh(x[t] + h @ w)
    return h""",
        """h, m = full(0.0, 16, 32), load(w)
    for t in range(24):
        s = nl.sigmoid(plane(z, t))
        c = nl.tanh(nl.add(plane(x, t), product(turned(h), m)))
        h = nl.add(nl.multiply(s, h), nl.multiply(nl.subtract(1.0, s), c))
    return stored(h)""",
        {"half the steps": ("range(24)", "range(12)"),
         "the last half alone": ("range(24)", "range(20, 24)"),
         "the state is not updated": ("h = nl.add", "y = nl.add"),
         "the gate is ignored": ("nl.sigmoid(plane(z, t))", "full(0.5, 16, 32)"),
         "no state": ("nl.add(plane(x, t), product(turned(h), m))", "plane(x, t)"),
         "the sign is turned": ("nl.add(nl.mul", "nl.subtract(nl.mul")}),
    "heat in 64 steps": IteratedKernel(
        "draw(32, 16), (lambda d: 0.1 * (d + d.T) - 0.2 * np.eye(32, dtype=np.float32))"
        "(np.eye(32, k=1, dtype=np.float32))", "u, d",
        """for _ in range(64):
        u = u + d @ u
    return u""",
        """y, m = load(u), turned(load(d))
    for _ in range(64):
        y = nl.add(y, product(m, y))
    return stored(y)""",
        {"half the steps": ("range(64)", "range(32)"),
         "a step less": ("range(64)", "range(63)"),
         "the state is not updated": ("y = nl.add", "z = nl.add"),
         "the sign is turned": ("nl.add(y", "nl.subtract(y")}),
    "a filter of Kalman's": IteratedKernel(
        "draw(50, 16, 32), share(16, 32) + one", "y, r",
        """x, p = y[0] * 0, y[0] * 0 + 1
    for t in range(50):
        p = p + 0.01
        k = p / (p + r)
        x = x + k * (y[t] - x)
        p = (1 - k) * p
    return x""",
        """x, p, noise = full(0.0, 16, 32), full(1.0, 16, 32), load(r)
    for t in range(50):
        p = nl.add(p, 0.01)
        k = over(p, nl.add(p, noise))
        x = nl.add(x, nl.multiply(k, nl.subtract(plane(y, t), x)))
        p = nl.multiply(nl.subtract(1.0, k), p)
    return stored(x)""",
        {"half the steps": ("range(50)", "range(25)"),
         "the state is not updated": ("x = nl.add", "z = nl.add"),
         "the other state is not": ("p = nl.multiply", "z = nl.multiply"),
         "an input is ignored": ("nl.add(p, noise)", "nl.add(p, 1.5)"),
         "a term is dropped": ("nl.subtract(plane(y, t), x)", "plane(y, t)")}),
    "a square root by Newton": IteratedKernel(
        "share(32, 32) + one", "a",
        """y = a
    for _ in range(4):
        y = 0.5 * (y + a / y)
    return y""",
        """x = load(a)
    y = x
    for _ in range(4):
        y = nl.multiply(nl.add(y, over(x, y)), 0.5)
    return stored(y)""",
        {"no step": ("range(4)", "range(0)"),
         "half the steps": ("range(4)", "range(2)"),
         "the state is not updated": ("y = nl.multiply", "z = nl.multiply"),
         "the sign is turned": ("nl.add(y", "nl.subtract(y")}),
    "logistic regression": IteratedKernel(
        "draw(64, 16), np.sign(draw(64, 1)) * one, draw(16, 1)", "x, y, w",
        """for _ in range(16):
        p = 1 / (1 + np.exp(-(x @ w)))
        w = w - 0.02 * (x.T @ (p - y))
    return w""",
        """data, right, v = load(x), load(y), load(w)
    across = turned(data)
    for _ in range(16):
        p = nl.sigmoid(product(across, v))
        v = combined(1.0, v, -0.02, product(data, nl.subtract(p, right)))
    return stored(v)""",
        {"half the steps": ("range(16)", "range(8)"),
         "the state is not updated": ("v = combined", "z = combined"),
         "an input is ignored": ("nl.subtract(p, right)", "p"),
         "another function": ("nl.sigmoid", "nl.tanh"),
         "the sign is turned": ("-0.02", "0.02")}),
    "a while loop": IteratedKernel(
        "draw(32, 32) / 8, draw(32, 32)", "a, b",
        """x, n = b, 0
    while n < 30:
        x = 0.5 * a @ x + b
        n += 1
    return x""",
        """m, y = turned(load(a)), load(b)
    x = y
    for _ in range(30):
        x = nl.add(nl.multiply(product(m, x), 0.5), y)
    return stored(x)""",
        {"a step": ("range(30)", "range(1)"),
         "three steps": ("range(30)", "range(3)"),
         "the state is not updated": ("x = nl.add", "z = nl.add"),
         "an input is ignored": ("0.5), y)", "0.5), 0.0)"),
         "the sign is turned": ("nl.add(nl", "nl.subtract(nl")}),
}  # fmt: skip


def reference_of(case: IteratedKernel) -> str:
    """Return the text of a file with the reference."""
    return REFERENCE.format(inputs=case.inputs, names=case.names, lines=case.lines)


def text_of(case: IteratedKernel, change: tuple[str, str] | None = None) -> str:
    """Return the text of a file with the kernel, or with a change of it.

    Raises:
        ValueError: the kernel does not have the text that is changed.
    """
    lines = case.kernel
    if change is not None:
        if change[0] not in lines:
            raise ValueError(f"no {change[0]!r}")
        lines = lines.replace(*change)
    return PRELUDE.format(names=case.names, lines=lines)
