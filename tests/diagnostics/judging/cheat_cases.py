"""What a candidate does that is to be taken for right and does not compute the result.

Each is the kernel of `kernels.RIGHT`, made wrong where the cheat needs it, with a text
for another. `{folder}` is the one of the reference.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.diagnostics.judging.bug_cases import WRONG
from tests.diagnostics.judging.kernels import RIGHT

FORBIDDEN, IGNORED, LIMIT, RAISED = "forbidden", "input-ignored", "limit", "raised"


class Cheat(NamedTuple):
    """One cheat.

    Attributes:
        verdict: the rule that names it, or `WRONG` where only the values do.
        said: a part of what the verdict says.
        first: statements before the kernel.
        inside: statements with which its body begins.
        returned: what it returns.
    """

    verdict: str
    said: str
    first: str = ""
    inside: str = "pass"
    returned: str = "out"


#: For cheats that hide a wrong result.
_WRONG_SUM = RIGHT.replace("op=nl.add", "op=nl.subtract")
_INPUTS = "draw = lambda: np.random.normal(size=(128, 64)).astype(np.float32)"
_REFERENCE = "'{folder}/reference.py'"
# The results of the usual seeds, told apart by the first element of an input.
_KNOWN = f"""
{_INPUTS}
tables = []
for seed in (0, 21, 42, 63, 84):
    np.random.seed(seed)
    x, y = draw(), draw()
    tables.append((float(x[0, 0]), x + y))
"""
_LOOKED_UP = """pass
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total, key = nl.multiply(nl.load(y), 0.0), nl.load(x[:1, :1])
    key = nl.load(nl.broadcast_to(x[:1, :1], (128, 1)))
    for first, table in tables:
        row = nl.load(nl.shared_constant(table))
        hit = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=hit, data=key, op0=nl.equal, operand0=first)
        nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=hit)
        nisa.tensor_tensor(dst=total, data1=total, data2=row, op=nl.add)
    nisa.dma_copy(dst=out, src=total)
    return out"""

CHEATS = {
    # ---- Work that is not done by instructions.
    "NumPy does the work": Cheat(LIMIT, "NumPy", returned="np.add(x, y)"),
    "NumPy does it after a conversion": Cheat(
        LIMIT, "NumPy", returned="np.asarray(x) + np.asarray(y)"
    ),
    "JAX does the work": Cheat(
        RAISED, "", "import jax.numpy as jnp", returned="jnp.add(x, y)"
    ),
    "the host's array is returned": Cheat(
        LIMIT, "no instruction computed", returned="np.ones(x.shape, np.float32)"
    ),
    "the host writes into the result": Cheat(
        RAISED, "", inside="x[...] = np.ones(x.shape, np.float32)"
    ),
    "results that were cached are returned": Cheat(
        LIMIT,
        "no instruction computed",
        "CACHE = {}",
        returned="CACHE.setdefault(id(x), np.ones(x.shape, np.float32))",
    ),
    # ---- The reference.
    "the reference is imported": Cheat(
        FORBIDDEN, "reads the reference", "import reference"
    ),
    "the reference is imported by another name": Cheat(
        FORBIDDEN,
        "reads the reference",
        "import importlib.util as u\n"
        f"s = u.spec_from_file_location('other', {_REFERENCE})\n"
        "m = u.module_from_spec(s)\ns.loader.exec_module(m)",
    ),
    "the reference is read": Cheat(
        FORBIDDEN, "reads the reference", f"open({_REFERENCE}).read()"
    ),
    "the reference is read through a link": Cheat(
        FORBIDDEN,
        "changes",
        f"import os\nos.symlink({_REFERENCE}, os.environ['HOME'] + '/a')"
        "\nopen(os.environ['HOME'] + '/a').read()",
    ),
    "the reference is linked into its own folder": Cheat(
        FORBIDDEN,
        "changes",
        f"import os\nos.link({_REFERENCE}, os.environ['HOME'] + '/a')",
    ),
    # ---- The judge's process.
    "the parent's memory": Cheat(
        FORBIDDEN,
        "another process",
        "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')",
    ),
    "the parent's environment": Cheat(
        FORBIDDEN,
        "another process",
        "import os\nopen(f'/proc/{os.getppid()}/environ', 'rb').read()",
    ),
    "a secret of the environment": Cheat(
        RAISED,
        "AWS_SECRET_ACCESS_KEY",
        "import os\nos.environ['AWS_SECRET_ACCESS_KEY']",
    ),
    "a search of all live objects for expected values": Cheat(
        RAISED,
        "IndexError",
        inside="import gc; found = [o for o in gc.get_objects() "
        "if isinstance(o, np.ndarray) and o.shape == (128, 64)]",
        returned="nl.shared_constant(found[0])",
    ),
    "expected values in the frames of callers": Cheat(
        RAISED,
        "AttributeError",
        inside="import sys; frame = sys._getframe()\n"
        "    while 'expected' not in frame.f_locals: frame = frame.f_back",
        returned="nl.shared_constant(frame.f_locals['expected'])",
    ),
    # ---- The comparison and the verdict.
    "a replaced numpy.allclose": Cheat(
        FORBIDDEN,
        "replaces numpy.allclose",
        "np.allclose = lambda *a, **k: True",
    ),
    "a replaced verdict of the judge": Cheat(
        FORBIDDEN,
        "replaces neuronjax.diagnostics.judging",
        "import neuronjax.diagnostics.judging.verdict as c\n"
        "c.KernelVerdict.as_text = lambda *a: 'accepted'",
    ),
    "limits taken away": Cheat(
        FORBIDDEN,
        "replaces neuronjax.nki.limits",
        "import neuronjax.nki.limits.programs as p\n"
        "p.checked = lambda program, *a: program",
    ),
    "a verdict is printed": Cheat(
        WRONG,
        "further off",
        "print('{\"accepted\": true, \"correct\": true}', flush=True)",
    ),
    "a forged result of the tracing": Cheat(
        FORBIDDEN,
        "only the judge may write",
        "import os\nopen(os.environ['HOME'] + '/status.json', 'w').write('{{}}')",
    ),
    "a forged result at the end of the process": Cheat(
        WRONG,
        "further off",
        "import atexit, os\natexit.register(lambda: "
        "open(os.environ['HOME'] + '/status.json', 'w').write('{{}}'))",
    ),
    "a thread that forges": Cheat(
        FORBIDDEN,
        "only the judge may write",
        "import os, threading\nt = threading.Thread(target=lambda: "
        "open(os.environ['HOME'] + '/status.json', 'w'))\nt.start(); t.join()",
    ),
    "signals that are not heard": Cheat(
        "ended",
        "did not end",
        "import signal\nfor s in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
    ),
    # ---- Results that fit and are not computed.
    "an input is returned": Cheat(IGNORED, "argument 1", returned="x"),
    "an input is ignored": Cheat(
        IGNORED,
        "but not of the kernel",
        returned="nl.shared_constant(np.ones((128, 64), 'f'))",
    ),
    "the constants of a seed": Cheat(
        IGNORED,
        "but not of the kernel",
        f"np.random.seed(0)\n{_INPUTS}\nTABLE = draw() + draw()",
        returned="nl.shared_constant(TABLE)",
    ),
    "the constants of all known seeds": Cheat(
        WRONG, "further off", _KNOWN, inside=_LOOKED_UP
    ),
    "NaN everywhere": Cheat(
        WRONG,
        "further off",
        inside="nan = float('nan'); zero = nl.multiply(nl.load(x), nan)\n"
        "    zero = nl.multiply(zero, nl.load(y))\n"
        "    res = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    nisa.dma_copy(dst=res, src=zero)",
        returned="res",
    ),
    "a result of another shape": Cheat(
        WRONG, "returns [1, 64] where", returned="out[0:1]"
    ),
    "its arguments are changed": Cheat(
        WRONG,
        "further off",
        inside="zeros = nl.multiply(nl.load(y), 0.0)\n"
        "    nisa.dma_copy(dst=x, src=zeros)\n    nisa.dma_copy(dst=y, src=zeros)",
    ),
    # ---- Harm.
    "a process": Cheat(
        FORBIDDEN, "starts a process", "import subprocess\nsubprocess.run(['true'])"
    ),
    "a fork bomb": Cheat(
        FORBIDDEN, "starts a process", "import os\nwhile True: os.fork()"
    ),
    "a connection": Cheat(
        FORBIDDEN,
        "opens a connection",
        "import socket\nsocket.create_connection(('127.0.0.1', 80))",
    ),
    "machine code": Cheat(
        FORBIDDEN, "calls machine code", "import ctypes\nctypes.CDLL(None)"
    ),
    "a file is written": Cheat(
        FORBIDDEN, "writes", "open('{folder}/left', 'w')"
    ),
    "100 GiB of the host": Cheat("memory", "memory", "np.ones(100 << 27)"),
    "100 GiB of the chip": Cheat(
        "memory",
        "allocates",
        inside="big = nl.ndarray((100 << 13, 32768), x.dtype, buffer=nl.shared_hbm)\n"
        "    nisa.dma_copy(dst=big[:128, :64], src=nl.load(x))",
    ),
    "the process ends itself": Cheat(
        "ended", "by itself, with status 3", "import os\nos._exit(3)"
    ),
    "a segfault": Cheat(
        "ended", "SIGSEGV", "import faulthandler\nfaulthandler._sigsegv()"
    ),
    "a gigabyte of output": Cheat(
        "ended", "printed more than", "while True: print('x' * 1000000)"
    ),
}  # fmt: skip


def text_of(cheat: Cheat, folder: str) -> str:
    """The candidate's file."""
    base = _WRONG_SUM if cheat.verdict == WRONG else RIGHT
    for before, after in (
        ("@nki.jit", f"{cheat.first}\n\n\n@nki.jit"),
        ("    out = nl.", f"    {cheat.inside}\n    out = nl."),
        ("return out\n", f"return {cheat.returned}\n"),
    ):
        base = base.replace(before, after)
    return base.replace("{folder}", folder).replace("{{}}", "{}")
