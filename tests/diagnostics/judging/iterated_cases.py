"""References that iterate, other ways to compute the same, and wrong kernels of each.

All are texts of `forward`: a way or a wrong kernel is one text for another of it, or
`ALL` of it.
"""

from __future__ import annotations

from typing import NamedTuple

ALL = ""


class Iterated(NamedTuple):
    """A reference.

    Attributes:
        inputs: what `get_inputs` returns.
        names: of the inputs.
        lines: of `forward`.
        ways: texts for others, with the same result.
        wrong: texts for others, with another result.
    """

    inputs: str
    names: str
    lines: str
    ways: dict[str, tuple[str, str]]
    wrong: dict[str, tuple[str, str]]


HEAD = """
import numpy as np

draw = lambda *shape: np.random.normal(size=shape).astype(np.float32)
unit = lambda a: (a / np.linalg.norm(a)).astype(np.float32)
one = np.float32(1)


def get_inputs():
    return [{inputs}]


def forward({names}):
    {lines}
"""

NEWTON_SCHULZ = """x = a
    for _ in range(5):
        g = x @ x.T
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x"""
DELTA_RULE = """s = np.zeros((16, 16), np.float32)
    out = np.zeros_like(v)
    for t in range(48):
        error = v[t] - k[t] @ s
        s = s + b[t] * k[t][:, None] * error[None, :]
        out[t] = q[t] @ s
    return out"""
CHUNKED_DELTA_RULE = """s, out = np.zeros((16, 16), np.float32), np.zeros_like(v)
    for c in range(0, 48, 16):
        kc, vc, bc, qc = (x[c : c + 16] for x in (k, v, b, q))
        low = np.tril(bc * (kc @ kc.T), -1)
        inverse = np.eye(16, dtype=np.float32)
        for i in range(1, 16):
            inverse[i] = inverse[i] - low[i, :i] @ inverse[:i]
        u = inverse @ (bc * vc) - (inverse @ (bc * kc)) @ s
        out[c : c + 16] = qc @ s + np.tril(qc @ kc.T) @ u
        s = s + kc.T @ u
    return out"""
LINEAR_ATTENTION = """s = np.zeros((16, 16), np.float32)
    out = np.zeros_like(v)
    for t in range(64):
        s = s + k[t][:, None] * v[t][None, :]
        out[t] = q[t] @ s
    return out"""
FLASH = """m = np.full((16, 1), -1e30, np.float32)
    l, o = np.zeros((16, 1), np.float32), np.zeros((16, 8), np.float32)
    for j in range(0, 64, 8):
        s = q @ k[j : j + 8].T
        n = np.maximum(m, s.max(1, keepdims=True))
        p, scale = np.exp(s - n), np.exp(m - n)
        l = l * scale + p.sum(1, keepdims=True)
        o = o * scale + p @ v[j : j + 8]
        m = n
    return o / l"""
PLAIN_ATTENTION = """p = q @ k.T
    p = np.exp(p - p.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True)) @ v"""
CONJUGATE_GRADIENT = """x, r, p = np.zeros_like(b), b, b
    for _ in range(4):
        q = a @ p
        alpha = np.sum(r * r) / np.sum(p * q)
        x = x + alpha * p
        new = r - alpha * q
        p = new + np.sum(new * new) / np.sum(r * r) * p
        r = new
    return x"""

CASES = {
    "three Newton-Schulz steps": Iterated(
        "unit(draw(32, 32))", "a", NEWTON_SCHULZ.replace("5)", "3)"),
        {"the square first": ("2.0315 * g @ g", "2.0315 * (g @ g)"),
         "by Horner": ("(-4.7750 * g + 2.0315 * g @ g) @ x",
                       "g @ (-4.7750 * x + 2.0315 * (g @ x))")},
        {"the input": (ALL, "return a"),
         "a step less": ("range(3)", "range(2)"),
         "no fifth power": ("+ 2.0315 * g @ g", ""),
         "another sign": ("-4.7750", "4.7750")}),
    "five Newton-Schulz steps": Iterated(
        "unit(draw(32, 32))", "a", NEWTON_SCHULZ,
        {"by Horner": ("(-4.7750 * g + 2.0315 * g @ g) @ x",
                       "g @ (-4.7750 * x + 2.0315 * (g @ x))")},
        {"the input": (ALL, "return a"),
         "zeros": (ALL, "return a * 0"),
         "a step less": ("range(5)", "range(4)"),
         "another constant": ("2.0315", "2.1"),
         "a term less": ("g = x @ x.T", "g = x[:, :-1] @ x[:, :-1].T")}),
    "a contraction to what comes": Iterated(
        "draw(128, 8, 16)", "x",
        "s = np.zeros_like(x[0])\n    for t in range(128):\n"
        "        s = s - 0.9 * (s - x[t])\n    return s",
        {"two products": ("s - 0.9 * (s - x[t])",
                          "np.float32(0.1) * s + np.float32(0.9) * x[t]")},
        {"the last": (ALL, "return x[-1]"),
         "a turn less": ("range(128)", "range(127)"),
         "a turn late": ("range(128)", "range(1, 128)[::-1]"),
         "another rate": ("0.9", "0.89")}),
    "a moving average": Iterated(
        "draw(128, 8, 16)", "x",
        "s = x[0]\n    for t in range(1, 128):\n"
        "        s = 0.98 * s + 0.02 * x[t]\n    return s",
        {"a difference": ("0.98 * s + 0.02 * x[t]", "s + 0.02 * (x[t] - s)")},
        {"zeros": (ALL, "return x[0] * 0"),
         "a turn less": ("128)", "127)"),
         "no first": ("s = x[0]", "s = x[0] * 0"),
         "another rate": ("0.02", "0.021")}),
    "a mean that runs": Iterated(
        "draw(64, 8, 16)", "x",
        "s = x[0]\n    for t in range(1, 64):\n"
        "        s = s + (x[t] - s) / (t + one)\n    return s",
        {"a sum": (ALL, "return x.sum(0) / 64")},
        {"a turn less": ("64)", "63)"),
         "another count": ("t + one", "t + one + one")}),
    "linear attention": Iterated(
        "draw(64, 16), draw(64, 16), draw(64, 16)", "q, k, v", LINEAR_ATTENTION,
        {"a masked product": (ALL, "return np.tril(q @ k.T) @ v")},
        {"its own term is missing": ("k[t][:, None] * v[t][None, :]",
                                     "(t < 63) * k[t][:, None] * v[t][None, :]"),
         "no mask": (ALL, "return (q @ k.T) @ v"),
         "one less": (ALL, "return np.tril(q @ k.T, -1) @ v"),
         "v": (ALL, "return v")}),
    "the delta rule": Iterated(
        "draw(48, 16), draw(48, 16) / 4, draw(48, 16),"
        " np.random.uniform(size=(48, 1)).astype(np.float32)",
        "q, k, v, b", DELTA_RULE,
        {"in chunks": (ALL, CHUNKED_DELTA_RULE)},
        {"no correction": ("v[t] - k[t] @ s", "v[t]"),
         "no rate": ("b[t] * ", ""),
         "the state's update is subtracted": ("s + b[t]", "s - b[t]"),
         "a round less": (ALL, CHUNKED_DELTA_RULE.replace("(1, 16)", "(1, 15)")),
         "no state of chunks before": (
             ALL, CHUNKED_DELTA_RULE.replace(" - (inverse @ (bc * kc)) @ s", ""))}),
    "a state-space model": Iterated(
        "draw(64, 4, 8), np.random.uniform(0.5, 0.99, size=(4, 8)).astype(np.float32),"
        " draw(4, 8)", "x, a, c",
        "h, out = np.zeros_like(a), np.zeros((64, 4), np.float32)\n"
        "    for t in range(64):\n        h = a * h + x[t]\n"
        "        out[t] = (c * h).sum(-1)\n    return out",
        {"another order": ("(c * h).sum(-1)", "(c * h)[:, ::-1].sum(-1)")},
        {"no decay": ("a * h", "h"), "no state": ("a * h + x[t]", "x[t]"),
         "a term less": ("(c * h)", "(c * h)[:, :-1]"),
         "a turn less": ("range(64)", "range(63)")}),
    "a recurrent network": Iterated(
        "draw(24, 8, 16), draw(16, 16) / 4", "x, w",
        "h = np.zeros_like(x[0])\n    for t in range(24):\n"
        "        h = np.tanh(h @ w + x[t])\n    return h",
        {"another order": ("h @ w", "h[:, ::-1] @ w[::-1]")},
        {"no state": ("h @ w + ", ""), "transposed": ("h @ w", "h @ w.T"),
         "a state in FP16": ("h @ w", "h.astype(np.float16).astype(np.float32) @ w"),
         "a turn less": ("range(24)", "range(23)")}),
    "rows and columns of sum 1": Iterated(
        "np.exp(draw(16, 16))", "x",
        "for _ in range(6):\n        x = x / x.sum(1, keepdims=True)\n"
        "        x = x / x.sum(0, keepdims=True)\n    return x",
        {"reciprocals": ("x / x.sum(1, keepdims=True)",
                         "x * (one / x.sum(1, keepdims=True))")},
        {"rows alone": ("x = x / x.sum(0, keepdims=True)", "pass"),
         "one round": ("range(6)", "range(1)"),
         "half the rounds": ("range(6)", "range(3)"),
         "the input": (ALL, "return x")}),
    "groups of mean 0": Iterated(
        "draw(16, 64) + one, draw(64)", "x, g",
        "y = x.reshape(16, 4, 16)\n    y = y - y.mean(2, keepdims=True)\n"
        "    y = y / np.sqrt((y * y).mean(2, keepdims=True) + np.float32(1e-5))\n"
        "    return y.reshape(16, 64) * g",
        {"a product": ("y / np.sqrt", "y * one / np.sqrt")},
        {"another epsilon": ("1e-5", "1e-4"),
         "no mean": (" - y.mean(2", " - 0 * y.mean(2")}),
    "steps of an optimizer": Iterated(
        "draw(16, 16), draw(16, 16, 16)", "w, g",
        "m, n = w * 0, w * 0\n    for t in range(16):\n"
        "        m = 0.9 * m + 0.1 * g[t]\n        n = 0.99 * n + 0.01 * g[t] * g[t]\n"
        "        w = w - 0.001 * m / (np.sqrt(n) + 1e-8)\n    return w",
        {"a product": ("0.01 * g[t] * g[t]", "(g[t] * g[t]) * 0.01")},
        {"the weight": (ALL, "return w"),
         "no second moment": ("/ (np.sqrt(n) + 1e-8)", ""),
         "a step less": ("range(16)", "range(15)"),
         "another rate": ("0.001", "0.00101")}),
    "an equation in steps": Iterated(
        "draw(8, 16), draw(16, 16) / 4", "x, w",
        "for _ in range(32):\n        x = x + 0.05 * (np.tanh(x @ w) - x)\n"
        "    return x",
        {"two products": ("x + 0.05 * (np.tanh(x @ w) - x)",
                          "0.95 * x + 0.05 * np.tanh(x @ w)")},
        {"the input": (ALL, "return x"), "another step": ("0.05", "0.051"),
         "a step less": ("range(32)", "range(31)")}),
    "a reciprocal by Newton": Iterated(
        "np.random.uniform(0.6, 1.4, size=(16, 16)).astype(np.float32)", "a",
        "y = 2 - a\n    for _ in range(3):\n        y = y * (2 - a * y)\n    return y",
        {"a division": (ALL, "return one / a")},
        {"no step": ("range(3)", "range(0)"), "a step": ("range(3)", "range(1)"),
         "the input": (ALL, "return a")}),
    "attention in blocks": Iterated(
        "draw(16, 8), draw(64, 8), draw(64, 8)", "q, k, v", FLASH,
        {"at once": (ALL, PLAIN_ATTENTION)},
        {"no scale": ("o * scale", "o"), "a block less": ("64, 8)", "56, 8)"),
         "no sum": ("o / l", "o")}),
    "conjugate gradients": Iterated(
        "(lambda a: a @ a.T / 8 + np.eye(8, dtype=np.float32))(draw(8, 8)), draw(8)",
        "a, b", CONJUGATE_GRADIENT,
        {"a product": ("np.sum(p * q)", "(p @ q)")},
        {"a step less": ("range(4)", "range(3)"),
         "another sign": ("p = new +", "p = new -"),
         "the right side": (ALL, "return b")}),
}  # fmt: skip


def text_of(case: Iterated, change: tuple[str, str] | None = None) -> str:
    """The text of a file with the reference, or with a change of it.

    Raises:
        ValueError: the reference does not have the text that is changed.
    """
    lines = case.lines
    if change is not None:
        before, after = change
        if before not in lines:
            raise ValueError(f"no {before!r}")
        lines = after if before == ALL else lines.replace(before, after)
    return HEAD.format(inputs=case.inputs, names=case.names, lines=lines)
