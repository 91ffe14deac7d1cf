"""`neuronjax track`: records how far results are from float64, commit by commit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from neuronjax.api.compare import compare
from neuronjax.api.keep_compiled import keep_compiled
from neuronjax.api.profile import profile
from neuronjax.cli import application
from neuronjax.cli.sources import Shapes, ShapesOption, SourceArgument, find
from neuronjax.errors import InvalidProgramError
from neuronjax.report.tables import NUMBER, WORD
from neuronjax.testing.golden_file import provenance

Record = Mapping[str, Any]
_SHOWN = ("rel_l2", "p99", "max", "faults", "predicted_seconds")
#: Only records with equal values of these fields are compared.
_SETTING = ("source", "target", "policy")
_RULE = re.compile(r"\s*(\S+)\s*>\s*([\d.]+(?:e[+-]?\d+)?)(x?)\s*")


def track(
    source: SourceArgument,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", help="A policy. Repeatable. Default: the function's."),
    ] = None,
    target: application.OwnTargetOption = None,
    shapes: ShapesOption = None,
    append: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Append each record, as JSON, to this file."),
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="Refuse a record for which this holds: 'rel_l2 > 0.01', or 'rel_l2 > "
            "1.2x', which means 1.2 times the last record's rel_l2.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="REVISION",
            help="Measure every commit after REVISION that --append's file lacks.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a plot of all records.")
    ] = None,
    cache: application.CacheOption = True,
    as_json: application.JsonOption = False,
) -> None:
    """Record for each commit how far a program's results are from float64.

    A record has the commit, the versions, the relative L2 error, the 99th percentile
    and the largest error of every result, the faults by kind and the predicted seconds.
    A record that breaks the rule of --fail-if is not kept. The exit status is 0, or 1
    if a record is not kept, or 2 if the program cannot be read.

    Examples:

        neuronjax track model.py:step --policy bf16 --policy fp8 --append e.jsonl
        neuronjax track model.py:step --append e.jsonl --fail-if 'rel_l2 > 1.2x'
        neuronjax track model.py:step --since v1.0 --append e.jsonl --plot it.png
    """
    application.check_folders([append, plot])
    rule = _RULE.fullmatch(fail_if or "")
    if rule is None and fail_if is not None:
        raise InvalidProgramError(
            f"--fail-if {fail_if!r} is no rule",
            remedy="write 'rel_l2 > 0.01', or 'rel_l2 > 1.2x' (times the last record)",
        )
    kept = _kept(append)
    if since is not None:
        options = {"--policy": policies, "--target": target, "--args": shapes}
        records = [*_backfilled(source, since, options, kept)]
    else:
        if cache:
            keep_compiled()
        records = [*_measured(source, target, policies or [None], shapes)]
    new, refusals = [], []
    for record in records:
        refusal = _refusal(rule, record, [*kept, *new]) if rule else ""
        (refusals if refusal else new).append(refusal or record)
    if append and new:
        with append.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in new)
    if plot and (drawn := [*kept, *records]):
        from neuronjax.report.plots_tracking import draw_tracking

        draw_tracking(drawn).savefig(plot)
    if as_json:
        application.print_json(records)
    elif records:
        columns = {"commit": WORD, "policy": WORD} | dict.fromkeys(_SHOWN, NUMBER)
        figures = ([f"{record[name]:.3g}" for name in _SHOWN] for record in records)
        names = ([record["commit"][:10], record["policy"]] for record in records)
        rows = (a + b for a, b in zip(names, figures, strict=True))
        title = f"{source}: errors against float64"
        Console().print(application.table(title, columns, rows))
    print("".join(f"{line}\n" for line in refusals), end="", file=sys.stderr)
    raise typer.Exit(1 if refusals else 0)


def _measured(
    source: str, target: str | None, policies: Sequence[str | None], shapes: Shapes
) -> Iterator[Record]:
    """Yield, for each policy, a record for the files in the current folder."""
    date, subject = _git("show", "-s", "--format=%cI%n%s", "HEAD").split("\n", 1)
    # "-dirty" marks a tree with edits.
    commit = _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    about = {"source": source, "commit": commit, "date": date, "subject": subject}
    about |= {f"version/{name}": version for name, version in provenance().items()}
    named_source = find(source)
    arguments, named = named_source.values(shapes, None, 0)
    for policy in policies:
        setting: dict[str, Any] = {"target": target, "policy": policy}
        errors = compare(named_source.function, **setting)(
            *arguments, **named
        ).summary()
        priced = profile(named_source.function, **setting)(*arguments, **named)
        # As the user wrote it, because a policy with changed fields has no name.
        written = {"policy": policy} if policy else {}
        time = {"predicted_seconds": priced.total_seconds}
        yield {**about, **errors, **time, **written}


def _kept(path: Path | None) -> list[Record]:
    """Return the records of a file, the oldest first."""
    if path is None or not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except ValueError as error:
        raise InvalidProgramError(
            f"{path} is no file of records: {error}",
            remedy="give --append another file",
        ) from error


def _refusal(rule: re.Match[str], record: Record, before: Sequence[Record]) -> str:
    """Return why a rule refuses a record, or "". A ratio is taken to the last record in
    `before` that has another commit and equal `_SETTING` fields."""
    figure, limit, is_ratio = rule[1], float(rule[2]), bool(rule[3])
    if figure not in record:
        raise InvalidProgramError(
            f"--fail-if: a record has no figure {figure!r}",
            remedy=f"choose one of {', '.join(record)}",
        )
    same = [r for r in before if all(r[key] == record[key] for key in _SETTING)]
    last = [r[figure] for r in same if r["commit"] != record["commit"] and figure in r]
    if is_ratio and not last:
        return ""
    allowed = limit * last[-1] if is_ratio else limit
    if record[figure] <= allowed:  # a NaN is refused
        return ""
    was = f"; the last record has {last[-1]:.3g}" if last else ""
    where = f"{record['commit'][:10]} {record['policy']}"
    return f"{where}: {figure} is {record[figure]:.3g}, the limit {allowed:.3g}{was}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    if process.returncode:
        raise InvalidProgramError(
            f"{' '.join(command)}: {process.stderr.strip()}",
            remedy="start the command in a repository that has the commit",
        )
    return process.stdout.strip()


def _backfilled(
    source: str, since: str, options: Mapping[str, Any], kept: Sequence[Record]
) -> Iterator[Record]:
    """Yield records of commits after `since` that are not in `kept`. Each commit is
    measured in a new worktree and process, by the installed neuronjax and JAX. A commit
    that cannot be measured is reported and skipped."""
    command = [sys.executable, "-m", "neuronjax", "track", source, "--json"]
    for option, value in options.items():
        several = value if isinstance(value, list) else [value]
        command += [f"{option}={each}" for each in several if each is not None]
    done = {record["commit"] for record in kept if record["source"] == source}
    below = _git("rev-parse", "--show-prefix")
    for commit in _git("rev-list", "--reverse", f"{since}..HEAD").split():
        if commit in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            _git("worktree", "add", "--detach", str(tree), commit)
            try:
                run = subprocess.run(
                    command,
                    cwd=tree / below,
                    check=False,
                    capture_output=True,
                    text=True,
                )
            finally:
                _git("worktree", "remove", "--force", str(tree))
        if run.returncode:
            last = (run.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"commit {commit[:10]} is skipped: {last}", file=sys.stderr)
        else:
            yield from json.loads(run.stdout)
