"""Two public collections of NKI kernels whose times on chips were published.

The measurements are in `nki_kernels.json`; the kernels stay in their repositories,
which the user has in one folder. A kernel is a module with a function `kernel`;
NKIBench's reference of its op makes the arguments. Their code is executed, as a user
would.
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

#: Folder, address and commit of what is needed.
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
SEED = 42  # of the collections' own inputs
#: Rows of kda-for-trainium whose time is that of a core and not half of it: ScalarE
#: applies 224 activations of 1,024 elements per lane, 0.19 ms, which is its share of
#: the time as it stands; of the doubled one it would be 0.39 ms.
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
    """A repository is not there, or not the one that was measured."""


@dataclass(frozen=True)
class CorpusKernel:
    """A kernel of a repository, as somebody ran it.

    Attributes:
        op: what it computes.
        kernel: its file in its repository.
        chip: on which, one physical core.
    """

    op: str
    kernel: str
    chip: str

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.kernel).stem

    def path(self, corpus: Path) -> Path:
        """Where the kernel is."""
        if self.kernel.startswith("NKIBench"):
            return corpus / "AccelOpt" / self.kernel
        return corpus / "kda-for-trainium" / "workspaces" / self.op / self.kernel


@dataclass(frozen=True)
class CorpusRow(CorpusKernel):
    """A kernel that somebody timed.

    Attributes:
        seconds: measured; of kda-for-trainium twice what is published, because what is
            published exceeds what a core can do.
        active: shares of the time in which engines were active, where it is known.
        read_bytes, write_bytes: of HBM, where it is known.
    """

    seconds: float
    active: Mapping[str, float]
    read_bytes: float | None
    write_bytes: float | None


def rows() -> tuple[CorpusRow, ...]:
    """All measurements, baselines first."""
    return tuple(map(_row, entries()))


def entries() -> list[dict[str, Any]]:
    """The file of measurements, baselines first, each with its chip."""
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
    """Commands that make the folder."""
    return "\n".join(
        f"git clone {address} {corpus / name}\ngit -C {corpus / name} checkout {commit}"
        for name, (address, commit) in repositories.items()
    )


def check(corpus: Path) -> list[str]:
    """What is not as it was measured, a line each; nothing if all is.

    Raises:
        CorpusError: none of the repositories is there.
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
    """What every program about these kernels takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("corpus", type=Path, help="folder of the repositories")
    parser.add_argument("--only", nargs="*", default=(), help="parts of rows' names")
    parser.add_argument("--output", type=Path, help="where to write the results")
    return parser


def chosen(rows: Iterable[Kernel], only: Sequence[str]) -> list[Kernel]:
    """Return the rows in whose op, name or chip one of the parts stands, or all."""
    return [
        row
        for row in rows
        if not only or any(part in f"{row.op}/{row.name}/{row.chip}" for part in only)
    ]


def is_there(corpus: Path) -> bool:
    """Whether there is anything to measure; prints what is missing."""
    try:
        for what in check(corpus):
            print(f"note: {what}")
    except CorpusError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _commit(folder: Path) -> str:
    """The commit of a clone; "" where the folder is none."""
    if not (folder / ".git").exists():
        return ""
    asked = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def kernel_and_arguments(
    row: CorpusKernel, corpus: Path
) -> tuple[Any, list[np.ndarray]]:
    """A row's kernel, and the inputs it was measured with.

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
    """NKIBench's module of an op: its inputs, and `forward` in NumPy.

    Raises:
        CorpusError: it is missing.
    """
    return _module(reference_path(op, corpus))


def reference_path(op: str, corpus: Path) -> Path:
    """The file of that module.

    Raises:
        CorpusError: it is missing.
    """
    folder = corpus / "AccelOpt" / "NKIBench" / "reference"
    for path in (*folder.glob(f"{op}_M*.py"), *folder.glob(f"{op}_B*.py")):
        return path
    raise CorpusError(f"no file {folder / op}_*.py", remedy=what_to_fetch(corpus))


def op_of(kernel: Path) -> str:
    """The op of one of NKIBench's own kernels, whose names go on with sizes."""
    return re.split(r"_[MB][0-9]", kernel.stem)[0]


def inputs(helpers: ModuleType) -> list[np.ndarray]:
    """The arguments of `forward`, as they were drawn."""
    np.random.seed(SEED)
    return helpers.get_inputs()


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
