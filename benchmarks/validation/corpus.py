"""Two public collections of NKI kernels with published times on chips.

The measurements are in `nki_kernels.json`; the kernels stay in their repositories,
which the user has cloned into one folder. A kernel is a module with a function
`kernel`; NKIBench's reference of its op makes the arguments. Their code is executed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import numpy as np

from neuronjax import nki
from neuronjax.errors import NeuronJaxError

#: Folder, address and commit of the repositories.
REPOSITORIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "AccelOpt": (
            "https://github.com/zhang677/AccelOpt",
            "47e29a7c24704e3c3e534b5bcbf39cfac3f831e3",
        ),
        "kda-for-trainium": (
            "https://github.com/Jerry2423/kda-for-trainium",
            "90770f2aaa14af45141fdb16d3cf9891f3255507",
        ),
    }
)
SEED = 42  # the seed with which the collections make inputs
#: Rows of kda-for-trainium whose published time is not halved: ScalarE applies 224
#: activations of 1,024 elements per lane in 0.19 ms, which is its published share of
#: the published time. Its share of the doubled time would be 0.39 ms.
WHOLE_TIMES = frozenset({"runs/silu_v2_k3.py", "runs/silu_v2_pingpong.py"})
_ENGINES = MappingProxyType(
    {
        "tensor": "PE_pct",
        "vector": "Vec_pct",
        "scalar": "Scl_pct",
        "dma": "DMA_pct",
    }
)
_ENGINES_TRN1 = MappingProxyType(
    {
        "vector": "vector_engine_active_time_percent",
        "scalar": "scalar_engine_active_time_percent",
    }
)


class CorpusError(NeuronJaxError):
    """An error: a repository is missing or at a commit that was not measured."""


@dataclass(frozen=True)
class CorpusKernel:
    """A kernel of a repository and the chip on which it was run.

    Attributes:
        op: the operation that it computes.
        kernel: its file, relative to its repository.
        chip: the chip, of which one physical core was used.
    """

    op: str
    kernel: str
    chip: str

    @property
    def name(self) -> str:
        """The name of the file without its suffix."""
        return Path(self.kernel).stem

    def path(self, corpus: Path) -> Path:
        """Return the path of the kernel."""
        if self.kernel.startswith("NKIBench"):
            return corpus / "AccelOpt" / self.kernel
        return corpus / "kda-for-trainium" / "workspaces" / self.op / self.kernel


@dataclass(frozen=True)
class CorpusRow(CorpusKernel):
    """A kernel with a published time.

    Attributes:
        seconds: measured time. For kda-for-trainium it is twice the published time,
            which is shorter than a core can achieve.
        active: shares of the time in which engines were active, if published.
        read_bytes, write_bytes: bytes of HBM, if published.
    """

    seconds: float
    active: Mapping[str, float]
    read_bytes: float | None
    write_bytes: float | None


def rows() -> tuple[CorpusRow, ...]:
    """Return all measurements, baselines first."""
    return tuple(map(_row, entries()))


def entries() -> list[dict[str, Any]]:
    """Return the measurements as in the file, baselines first, each with its chip."""
    found = json.loads(Path(__file__).with_name("nki_kernels.json").read_text())
    candidates = [{"chip": "trn2", **row} for row in found["trn2_candidates"]]
    return [*found["baselines"], *candidates]


def _row(given: Mapping[str, Any]) -> CorpusRow:
    counters = given.get("counters") or {}
    halved = given["chip"] == "trn2" and given["kernel"] not in WHOLE_TIMES
    active = {q: counters[c] / 100 for q, c in _ENGINES.items() if c in counters}
    active |= {q: counters[c] for q, c in _ENGINES_TRN1.items() if c in counters}
    moved = [
        counters.get(f"hbm_{way}_bytes", counters.get(f"HBM{short}_MB", 0) * 1e6)
        for way, short in (("read", "rd"), ("write", "wr"))
    ]
    return CorpusRow(
        op=given["op"],
        kernel=given["kernel"],
        chip=given["chip"],
        seconds=given["ms"] * 1e-3 * (2 if halved else 1),
        active=active,
        read_bytes=moved[0] or None,
        write_bytes=moved[1] or None,
    )


def what_to_fetch(
    corpus: Path, repositories: Mapping[str, tuple[str, str]] = REPOSITORIES
) -> str:
    """Return the commands that make the folder."""
    return "\n".join(
        f"git clone {address} {corpus / name}\ngit -C {corpus / name} checkout {commit}"
        for name, (address, commit) in repositories.items()
    )


def check(corpus: Path) -> list[str]:
    """Return a line for each difference from the measured repositories.

    Raises:
        CorpusError: all repositories are missing.
    """
    there = [name for name in REPOSITORIES if (corpus / name).is_dir()]
    if not there:
        raise CorpusError(
            f"{corpus} has neither {' nor '.join(REPOSITORIES)}",
            remedy="fetch them:\n" + what_to_fetch(corpus),
        )
    found = [
        f"{name} is missing: its rows are left out"
        for name in REPOSITORIES
        if name not in there
    ]
    for name in there:
        commit = _commit(corpus / name)
        if commit != REPOSITORIES[name][1]:
            state = f"at commit {commit}" if commit else "no clone of git"
            found.append(f"{name} is {state}, not {REPOSITORIES[name][1]}")
    return found


Kernel = TypeVar("Kernel", bound=CorpusKernel)


def command_line(about: str) -> argparse.ArgumentParser:
    """Return the parser with the options that all programs for these kernels share."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("corpus", type=Path, help="folder of the repositories")
    parser.add_argument("--only", nargs="*", default=(), help="parts of rows' names")
    parser.add_argument("--output", type=Path, help="where to write the results")
    return parser


def chosen(rows: Iterable[Kernel], only: Sequence[str]) -> list[Kernel]:
    """Return the rows whose op, name or chip contains one of the parts, or all."""
    return [
        row
        for row in rows
        if not only or any(part in f"{row.op}/{row.name}/{row.chip}" for part in only)
    ]


def is_there(corpus: Path) -> bool:
    """Return whether a repository exists; print what is missing."""
    try:
        for what in check(corpus):
            print(f"note: {what}")
    except CorpusError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _commit(folder: Path) -> str:
    """Return the commit of a clone; "" if the folder is not a clone."""
    if not (folder / ".git").exists():
        return ""
    asked = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def kernel_and_arguments(
    row: CorpusKernel, corpus: Path
) -> tuple[Any, list[np.ndarray]]:
    """Return a row's kernel, and the inputs with which it was measured.

    Raises:
        CorpusError: a file is missing.
    """
    nki.install()
    helpers, path = reference(row.op, corpus), row.path(corpus)
    if not path.is_file():
        raise CorpusError(f"no file {path}", remedy=what_to_fetch(corpus))
    arguments = helpers.transform_to_nki_inputs(inputs(helpers))
    return _module(path).kernel, list(arguments)


def reference(op: str, corpus: Path) -> ModuleType:
    """Return NKIBench's module of an op: its inputs, and `forward` in NumPy.

    Raises:
        CorpusError: the module is missing.
    """
    return _module(reference_path(op, corpus))


def reference_path(op: str, corpus: Path) -> Path:
    """Return the file of NKIBench's module of an op.

    Raises:
        CorpusError: the file is missing.
    """
    folder = corpus / "AccelOpt" / "NKIBench" / "reference"
    for path in (*folder.glob(f"{op}_M*.py"), *folder.glob(f"{op}_B*.py")):
        return path
    raise CorpusError(f"no file {folder / op}_*.py", remedy=what_to_fetch(corpus))


def op_of(kernel: Path) -> str:
    """Return the op of one of NKIBench's own kernels from the file name."""
    return re.split(r"_[MB][0-9]", kernel.stem)[0]


def inputs(helpers: ModuleType) -> list[np.ndarray]:
    """Return the arguments of `forward` with which kernels were measured."""
    np.random.seed(SEED)
    return helpers.get_inputs()


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
