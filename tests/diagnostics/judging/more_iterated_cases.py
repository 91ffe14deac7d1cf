"""Twenty more references that iterate, as `iterated_cases` has them: 3 to 128 steps."""

from tests.diagnostics.judging.iterated_cases import ALL, Iterated

GATED_DELTA = """s, out = np.zeros((16, 16), np.float32), np.zeros_like(v)
    for t in range(40):
        s = g[t] * s
        s = s + b[t] * k[t][:, None] * (v[t] - k[t] @ s)[None, :]
        out[t] = q[t] @ s
    return out"""
RETENTION = """s, out = np.zeros((16, 16), np.float32), np.zeros_like(v)
    for t in range(64):
        s = 0.9 * s + k[t][:, None] * v[t][None, :]
        out[t] = q[t] @ s
    return out"""
NORMALISED = """s, z = np.zeros((16, 16), np.float32), np.zeros(16, np.float32)
    out = np.zeros_like(v)
    for t in range(32):
        s = s + k[t][:, None] * v[t][None, :]
        z = z + k[t]
        out[t] = (q[t] @ s) / np.sum(q[t] * z)
    return out"""
SELECTIVE = """h, out = np.zeros_like(a), np.zeros((48, 8), np.float32)
    for t in range(48):
        h = np.exp(d[t][:, None] * a) * h + d[t][:, None] * b[t] * x[t][:, None]
        out[t] = (c[t] * h).sum(-1)
    return out"""
TRAPEZOID = """h, out = x[0] * 0, np.zeros_like(x)
    for t in range(1, 64):
        h = a * h + 0.5 * (a * x[t - 1] + x[t])
        out[t] = h
    return out"""
SINKHORN = """f, g = np.zeros((16, 1), np.float32), np.zeros((1, 16), np.float32)
    for _ in range(8):
        f = -np.log(np.exp(c + g).sum(1, keepdims=True))
        g = -np.log(np.exp(c + f).sum(0, keepdims=True))
    return np.exp(c + f + g)"""
CHEBYSHEV = """x, r, p, alpha = b * 0, b, b * 0, 0.0
    for n in range(5):
        beta = 0.0 if n == 0 else (0.5 if n == 1 else 0.25) * (2 * alpha) ** 2
        alpha = 1 / 4.0 if n == 0 else 1 / (4.0 - beta / alpha)
        p = r + beta * p
        x = x + alpha * p
        r = b - a @ x
    return x"""
CLENSHAW = """u, w = x * 0, x * 0
    for n in range(23, 0, -1):
        u, w = 2 * x * u - w + c[n], u
    return x * u - w + c[0]"""
KALMAN = """m, p, out = z[0] * 0, np.eye(4, dtype=np.float32), np.zeros_like(z)
    for t in range(24):
        m, p = f @ m, f @ p @ f.T + 0.1 * np.eye(4, dtype=np.float32)
        for i in range(4):
            gain = p[:, i] / (p[i, i] + 1)
            m = m + gain * (z[t, i] - m[i])
            p = p - gain[:, None] * p[i][None, :]
        out[t] = m
    return out"""
SQUARE_ROOT = """n = np.sqrt(np.sum(a * a))
    y, z = a / n, np.eye(12, dtype=np.float32)
    for _ in range(12):
        t = 1.5 * np.eye(12, dtype=np.float32) - 0.5 * (z @ y)
        y, z = y @ t, t @ z
    return y * np.sqrt(n)"""
RUNGE_KUTTA = """for _ in range(10):
        k = np.tanh(x @ w)
        l = np.tanh((x + 0.05 * k) @ w)
        m = np.tanh((x + 0.05 * l) @ w)
        n = np.tanh((x + 0.1 * m) @ w)
        x = x + 0.1 / 6 * (k + 2 * l + 2 * m + n)
    return x"""
HOLT = """l, b = x[0], x[1] - x[0]
    for t in range(1, 48):
        n = 0.3 * x[t] + 0.7 * (l + b)
        b = 0.1 * (n - l) + 0.9 * b
        l = n
    return l + b"""
LONG_SHORT = """h, c = x[0] * 0, x[0] * 0
    for t in range(16):
        i, f, o, g = (x[t] + h @ w[n] for n in range(4))
        i, f, o = (1 / (1 + np.exp(-y)) for y in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
    return h"""
_ROWS = "draw(40, 16), draw(40, 16) / 4, draw(40, 16), "
_RATES = "np.random.uniform(size=(40, 1)).astype(np.float32)"
_POSITIVE = "(lambda m: m @ m.T / 12 + 2 * np.eye(12, dtype=np.float32))(draw(12, 12))"
_GRAM = "(lambda m: m @ m.T / 32)(draw(16, 32))"

MORE = {
    "a gated delta rule": Iterated(
        _ROWS + _RATES + ", 0.8 + " + _RATES + " / 5", "q, k, v, b, g", GATED_DELTA,
        {"the rate later": ("b[t] * k[t][:, None] * (v[t] - k[t] @ s)[None, :]",
                            "k[t][:, None] * (b[t] * (v[t] - k[t] @ s))[None, :]")},
        {"no gate": ("g[t] * s", "s"), "no rate": ("b[t] * ", ""),
         "subtracted": ("s + b[t]", "s - b[t]"),
         "a step less": ("range(40)", "range(39)")}),
    "retention": Iterated(
        "draw(64, 16), draw(64, 16), draw(64, 16)", "q, k, v", RETENTION,
        {"a masked product": (ALL, "n = np.arange(64)\n    w = 0.9 ** np.maximum("
                              "n[:, None] - n, 0).astype(np.float32)\n"
                              "    return np.tril((q @ k.T) * w) @ v")},
        {"no decay": ("0.9 * s", "s"), "v": (ALL, "return v"),
         "another decay": ("0.9", "0.91"), "no state": ("0.9 * s + ", "")}),
    "attention that is normalised": Iterated(
        "np.exp(draw(32, 16)), np.exp(draw(32, 16)), draw(32, 16)", "q, k, v",
        NORMALISED,
        {"at once": (ALL, "w = np.tril(q @ k.T)\n"
                     "    return (w @ v) / w.sum(1, keepdims=True)")},
        {"no norm": (" / np.sum(q[t] * z)", ""), "v": (ALL, "return v"),
         "its state is not kept": ("z = z + k[t]", "z = k[t]"),
         "a step less": ("range(32)", "range(31)")}),
    "a selective scan": Iterated(
        "draw(48, 8), np.random.uniform(size=(48, 8)).astype(np.float32),"
        " -np.exp(draw(8, 4)), draw(48, 1, 4), draw(48, 1, 4)", "x, d, a, b, c",
        SELECTIVE,
        {"the step later": ("d[t][:, None] * b[t] * x[t][:, None]",
                            "b[t] * (d[t] * x[t])[:, None]")},
        {"no decay": ("np.exp(d[t][:, None] * a) * h", "h"),
         "no step": ("+ d[t][:, None] * b[t]", "+ b[t]"),
         "a term less": ("(c[t] * h)", "(c[t] * h)[:, :-1]"),
         "another sign": (") * h + d", ") * h - d")}),
    "a scan by trapezoids": Iterated(
        "draw(64, 16), np.random.uniform(0.5, 0.99, size=16).astype(np.float32)",
        "x, a", TRAPEZOID,
        {"one product": ("a * h + 0.5 * (a * x[t - 1] + x[t])",
                         "a * (h + 0.5 * x[t - 1]) + 0.5 * x[t]")},
        {"by rectangles": ("0.5 * (a * x[t - 1] + x[t])", "x[t]"),
         "the input": (ALL, "return x"), "a step less": ("64)", "63)")}),
    "Sinkhorn's logarithms": Iterated(
        "draw(16, 16)", "c", SINKHORN,
        {"by factors": (ALL, "k = np.exp(c)\n    v = np.ones((1, 16), np.float32)\n"
                        "    for _ in range(8):\n"
                        "        u = one / (k * v).sum(1, keepdims=True)\n"
                        "        v = one / (k * u).sum(0, keepdims=True)\n"
                        "    return k * u * v")},
        {"one round": ("range(8)", "range(1)"), "rows alone": ("c + f + g", "c + f"),
         "exp alone": (ALL, "return np.exp(c)")}),
    "heavy balls": Iterated(
        _GRAM + ", draw(16, 4)", "a, x",
        "m = x * 0\n    for _ in range(30):\n        m = 0.8 * m - 0.1 * (a @ x)\n"
        "        x = x + m\n    return x",
        {"a difference": ("m = 0.8 * m - 0.1 * (a @ x)\n        x = x + m",
                          "m = 0.8 * m + (a @ x)\n        x = x - 0.1 * m")},
        {"no momentum": ("0.8 * m", "0"), "the input": (ALL, "return x"),
         "half the steps": ("range(30)", "range(15)"),
         "another sign": ("m - 0.1", "m + 0.1")}),
    "steps of signs and averages": Iterated(
        "draw(16, 16), draw(24, 16, 16)", "w, g",
        "m = w * 0\n    for t in range(24):\n        m = 0.9 * m + 0.1 * g[t]\n"
        "        w = 0.99 * w - 0.01 * np.tanh(8 * m)\n    return w",
        {"a difference": ("0.9 * m + 0.1 * g[t]", "m + 0.1 * (g[t] - m)")},
        {"the weight": (ALL, "return w"), "no decay": ("0.99 * w", "w"),
         "no average": ("0.9 * m + 0.1 * g[t]", "g[t]"),
         "a step less": ("range(24)", "range(23)")}),
    "root mean squares": Iterated(
        "draw(16, 16), draw(40, 16, 16)", "w, g",
        "n = w * 0 + 1\n    for t in range(40):\n"
        "        n = 0.95 * n + 0.05 * g[t] ** 2\n"
        "        w = w - 0.01 * g[t] / np.sqrt(n + 1e-6)\n    return w",
        {"a product": ("g[t] ** 2", "(g[t] * g[t])")},
        {"no root": ("/ np.sqrt(n + 1e-6)", "/ (n + 1e-6)"),
         "the weight": (ALL, "return w"), "another sign": ("w - 0.01", "w + 0.01"),
         "no square": ("g[t] ** 2", "np.abs(g[t])")}),
    "two vectors of the largest values": Iterated(
        _GRAM + ", draw(16, 1), draw(16, 1)", "a, u, v",
        "for _ in range(9):\n        u = a @ u\n"
        "        u = u / np.sqrt(np.sum(u * u))\n        v = a @ v\n"
        "        v = v - u * np.sum(u * v)\n"
        "        v = v / np.sqrt(np.sum(v * v))\n    return np.concatenate([u, v])",
        {"a product": ("u * np.sum(u * v)", "u @ (u.T @ v)")},
        {"no projection": ("v - u * np.sum(u * v)", "v"),
         "half the steps": ("range(9)", "range(4)"),
         "no norm": ("u / np.sqrt(np.sum(u * u))", "u / 2")}),
    "a power by squares": Iterated(
        "(lambda m: m / np.linalg.norm(m, 2))(draw(16, 16))", "x",
        "for _ in range(3):\n        x = x @ x\n    return x",
        {"one by one": (ALL, "y = x\n    for _ in range(7):\n        y = y @ x\n"
                        "    return y")},
        {"the input": (ALL, "return x"), "a square less": ("range(3)", "range(2)"),
         "transposed": ("x @ x", "x @ x.T")}),
    "a square root of a matrix": Iterated(
        _POSITIVE, "a", SQUARE_ROOT,
        {"three": ("1.5 * np.eye(12, dtype=np.float32) - 0.5 * (z @ y)",
                   "0.5 * (3 * np.eye(12, dtype=np.float32) - z @ y)")},
        {"the input": (ALL, "return a"), "two steps": ("range(12)", "range(2)"),
         "no size": ("y * np.sqrt(n)", "y"), "the inverse": ("return y", "return z")}),
    "a cube root by Newton": Iterated(
        "np.random.uniform(0.5, 2, size=(16, 16)).astype(np.float32)", "a",
        "y = a\n    for _ in range(6):\n        y = y - (y * y * y - a) / (3 * y * y)\n"
        "    return y",
        {"a mean": ("y - (y * y * y - a) / (3 * y * y)", "(2 * y + a / (y * y)) / 3")},
        {"the input": (ALL, "return a"), "a step": ("range(6)", "range(1)"),
         "another sign": ("y - (y", "y + (y")}),
    "Chebyshev's iteration": Iterated(
        "(lambda m: m @ m.T / 16 + 2 * np.eye(16, dtype=np.float32))(draw(16, 16)),"
        " draw(16)", "a, b", CHEBYSHEV,
        {"its own residual": ("r = b - a @ x", "r = r - alpha * (a @ p)")},
        {"the right side": (ALL, "return b"), "no momentum": ("+ beta * p", ""),
         "two steps": ("range(5)", "range(2)"),
         "half": ("alpha * p", "alpha * p / 2")}),
    "Clenshaw's sum": Iterated(
        "np.random.uniform(-0.9, 0.9, size=(8, 16)).astype(np.float32), draw(24)",
        "x, c", CLENSHAW,
        {"doubled first": ("2 * x * u - w + c[n]", "(x + x) * u + (c[n] - w)")},
        {"the input": (ALL, "return x"), "a term less": ("range(23", "range(22"),
         "another sign": ("u - w + c[n]", "u + w + c[n]"),
         "no constant": ("- w + c[0]", "- w")}),
    "a filter of four numbers": Iterated(
        "draw(24, 4), (np.eye(4) * 0.9 + draw(4, 4) / 20).astype(np.float32)", "z, f",
        KALMAN,
        {"the covariance's other half": ("p[i][None, :]", "p[:, i][None, :]")},
        {"the input": (ALL, "return z"), "no noise": ("(p[i, i] + 1)", "p[i, i]"),
         "three numbers": ("range(4)", "range(3)"),
         "the covariance is kept": ("p = p - gain", "r = p - gain")}),
    "an average that is corrected": Iterated(
        "draw(100, 8, 16)", "x",
        "s = x[0] * 0\n    for t in range(100):\n        s = 0.97 * s + 0.03 * x[t]\n"
        "    return s / (1 - 0.97 ** 100)",
        {"weights": (ALL, "w = 0.03 * 0.97 ** np.arange(99, -1, -1)\n"
                     "    w = (w / (1 - 0.97 ** 100)).astype(np.float32)\n"
                     "    return np.einsum('t,tij->ij', w, x)")},
        {"not corrected": (" / (1 - 0.97 ** 100)", ""), "the mean": (ALL, "return "
         "x.mean(0)"), "another rate": ("0.03", "0.031"),
         "a row less": ("range(100)", "range(99)")}),
    "a level and a trend": Iterated(
        "draw(48, 8, 16)", "x", HOLT,
        {"differences": ("0.3 * x[t] + 0.7 * (l + b)", "l + b + 0.3 * (x[t] - l - b)")},
        {"no trend": ("0.1 * (n - l) + 0.9 * b", "0 * b"),
         "the last": (ALL, "return x[-1]"), "the level alone": ("return l + b",
         "return l"), "another sign": ("0.1 * (n - l)", "0.1 * (l - n)")}),
    "a long short-term memory": Iterated(
        "draw(16, 8, 16), draw(4, 16, 16) / 5", "x, w", LONG_SHORT,
        {"another order": ("x[t] + h @ w[n]", "h[:, ::-1] @ w[n][::-1] + x[t]")},
        {"no forgetting": ("f * c", "c"), "no state": ("x[t] + h @ w[n]", "x[t]"),
         "a step less": ("range(16)", "range(15)"),
         "the cell": ("return h", "return c"), "zeros": (ALL, "return x[0] * 0")}),
    "an equation by Runge and Kutta": Iterated(
        "draw(8, 16), draw(16, 16) / 4", "x, w", RUNGE_KUTTA,
        {"a sum": ("k + 2 * l + 2 * m + n", "(k + n) + 2 * (l + m)")},
        {"the input": (ALL, "return x"), "a step less": ("range(10)", "range(9)"),
         "by Euler": ("0.1 / 6 * (k + 2 * l + 2 * m + n)", "0.1 * k"),
         "another sign": ("x = x + 0.1", "x = x - 0.1")}),
}  # fmt: skip
