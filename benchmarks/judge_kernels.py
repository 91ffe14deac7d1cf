"""Every kernel of two public collections, judged as it is.

    python -m benchmarks.judge_kernels CORPUS [--only silu ...] [--output FILE]

CORPUS is a folder with the repositories of `validation.corpus`; without them the
program says what to fetch. Each kernel is given to `neuronjax judge` in a process of
its own, with NKIBench's reference of its op and one seed. Entries of the output that
are not judged again stay.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness, results_file
from benchmarks.validation import corpus as corpora

NAME = "judge_kernels"
LIMIT_SECONDS = 900
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
HEAD = f"{'':63}{'s':>6}{'GiB':>6}"


@dataclass(frozen=True, kw_only=True)
class JudgedKernel:
    """The verdict on one kernel.

    Attributes:
        op: the operation that it computes.
        kernel: its file, relative to its repository.
        accepted, correct: as in the verdict; `correct` is None without a run.
        undecided: whether the derived bounds were too wide for a decision.
        why: the first problem, or "".
        seconds: wall time, including the start of a process.
        largest_bytes: largest memory of the process.
    """

    op: str
    kernel: str
    accepted: bool
    correct: bool | None
    undecided: bool
    why: str
    seconds: float
    largest_bytes: int


def kernels(corpus: Path) -> Iterator[tuple[str, Path]]:
    """Yield ops and files that hold a kernel."""
    bench = corpus / "AccelOpt" / "NKIBench" / "kernels"
    for path in sorted(bench.glob("*.py")):
        yield corpora.op_of(path), path
    for path in sorted(corpus.glob("kda-for-trainium/workspaces/*/runs/*.py")):
        if "\ndef kernel(" in path.read_text():
            yield path.parents[1].name, path


def judged(op: str, path: Path, corpus: Path, limit: float) -> JudgedKernel:
    """Return one kernel's verdict, time and memory."""
    reference = corpora.reference_path(op, corpus)
    command = [sys.executable, "-m", "neuronjax", "judge", str(path), "--json"]
    command += ["--reference", str(reference), "--seeds", str(corpora.SEED)]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(
            command, stdout=out, stderr=err, env=harness.users_environment()
        )
        killer = threading.Timer(limit, child.kill)
        killer.start()
        _, status, usage = os.wait4(child.pid, 0)
        killer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        said, complaint = out.read(), err.read()
    found = json.loads(said) if said.startswith("{") else {}
    problems = [*found.get("limits", ()), *found.get("hazards", ())]
    why = next((f"{p['rule']}: {p['message']}" for p in problems), "")
    vague = found.get("undecided", "")
    wrong = next((s["why"] for s in found.get("seeds", ()) if s["why"]), vague)
    ended = f"status {child.returncode}: {complaint[-200:].strip()}"
    return JudgedKernel(
        op=op,
        kernel=str(path.relative_to(corpus)),
        accepted=bool(found.get("accepted")),
        correct=found.get("correct"),
        undecided=bool(vague),
        why=(why or wrong) if found else ended,
        seconds=time.monotonic() - start,
        largest_bytes=usage.ru_maxrss * _MAXRSS_BYTES,
    )


def line(found: JudgedKernel) -> str:
    """Return a line of the table."""
    word = "undecided" if found.undecided else "refused"
    word = "accepted" if found.accepted else word
    size = f"{found.largest_bytes / (1 << 30):6.1f}"
    name = found.kernel.rpartition("/")[2].removesuffix(".py")
    return (
        f"{word:10}{name[:52]:53}{found.seconds:6.1f}{size}  {found.why[:80]}".rstrip()
    )


def summary(entries: list[Mapping[str, Any]]) -> str:
    """Return the number of accepted kernels, and their times and memory, as text."""
    accepted = sum(e["accepted"] for e in entries)
    spent = [e["seconds"] for e in entries]
    most = max(e["largest_bytes"] for e in entries) / (1 << 30)
    return (
        f"{accepted} of {len(entries)} accepted; median {statistics.median(spent):.1f} "
        f"s, slowest {max(spent):.1f} s, at most {most:.1f} GiB"
    )


def main(arguments: list[str] | None = None) -> int:
    """Judge the kernels, print the verdicts and store them."""
    parser = corpora.command_line(__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds")
    options = parser.parse_args(arguments)
    if not corpora.is_there(options.corpus):
        return 2
    about = harness.circumstances()
    entries: dict[str, Mapping[str, Any]] = {}
    if options.output and options.output.exists():
        before = results_file.read(options.output)["entries"]
        entries = {e["kernel"]: e for e in before}
    print(HEAD)
    every = [
        (op, p, str(p.relative_to(options.corpus))) for op, p in kernels(options.corpus)
    ]
    names = {name for *_, name in every}
    entries = {name: entry for name, entry in entries.items() if name in names}
    for op, path, name in every:
        if options.only and not any(part in name for part in options.only):
            continue
        found = judged(op, path, options.corpus, options.limit)
        entries[name] = asdict(found)
        print(line(found), flush=True)
        if options.output:  # after each kernel: a run takes hours and may be stopped
            body = {
                "entries": [entries[name] for name in sorted(entries)],
                "not_done": sorted(names - entries.keys()),
            }
            document = results_file.document(
                NAME,
                body,
                quick=bool(body["not_done"]),
                seconds=sum(e["seconds"] for e in entries.values()),
                **about,
            )
            results_file.write(document, options.output)
    if entries:
        print(summary(list(entries.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
