"""Errors of a function over commits: one line of JSON for each commit and policy.

    python track.py model.py:train_step --policy bf16 --policy fp8 --append errors.jsonl
    python track.py model.py:train_step --since v1.0 --append errors.jsonl --plot it.png
    python track.py model.py:train_step --append errors.jsonl --fail-if "rel_l2 > 1.2x"

The function's attribute `example_args`, or a function of that name, says what it is
called with. Every result is compared with the same program in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RULE = re.compile(r"(\S+) > ([\d.e+-]+)(x?)")
#: Says "-dirty" of a tree with edits.
COMMIT = ("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def git(*arguments: str, folder: Path | None = None) -> str:
    """Return what git says."""
    found = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


# -- one commit ------------------------------------------------------------------------


def measured(source: str, target: str, policy: str, folder: Path) -> dict[str, Any]:
    """Return the figures of a function as it is in a folder, flat."""
    import neuronjax as nj
    from neuronjax.testing.golden_file import provenance

    file, _, name = source.rpartition(":")
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(Path(file).stem, folder / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    given = function.example_args
    arguments = given() if callable(given) else given
    setting = {"target": target, "policy": policy}
    record = nj.compare(function, **setting)(*arguments).summary()
    priced = nj.profile(function, **setting)(*arguments)
    record["predicted_seconds"] = priced.total_seconds
    return {
        "commit": git(*COMMIT, folder=folder),
        "date": git("show", "-s", "--format=%cI", "HEAD", folder=folder),
        "subject": git("show", "-s", "--format=%s", "HEAD", folder=folder),
        "source": source,
        **{f"version/{name}": text for name, text in provenance().items()},
        **record,
        **setting,
    }


def elsewhere(commit: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the records of another commit, measured in a process of its own."""
    below = git("rev-parse", "--show-prefix")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            command = [sys.executable, __file__, options.source, "--json"]
            command += ["--target", options.target, "--folder", str(tree / below)]
            for policy in options.policy:
                command += ["--policy", policy]
            found = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            git("worktree", "remove", "--force", str(tree))
    if found.returncode:
        last = (found.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{commit[:10]} is left out: {last}", file=sys.stderr)
        return []
    return [json.loads(line) for line in found.stdout.splitlines()]


# -- many ------------------------------------------------------------------------------


def kept(path: Path | None) -> list[dict[str, Any]]:
    """Return the records of a file, the oldest first."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def refusal(rule: str, record: dict[str, Any], before: list[dict[str, Any]]) -> str:
    """Return why a rule refuses a record, or "": "rel_l2 > 1.2x" of the last record of
    the same setting and another commit, or "rel_l2 > 0.01"."""
    match = RULE.fullmatch(rule.strip())
    if match is None or match[1] not in record:
        raise SystemExit(
            f"--fail-if {rule!r}: write 'rel_l2 > 1.2x' or 'rel_l2 > 0.01'; figures: "
            f"{', '.join(record)}"
        )
    figure, limit, is_ratio = match[1], float(match[2]), bool(match[3])
    same = [r for r in before if all(r[k] == record[k] for k in KEYS)]
    last = [r[figure] for r in same if r["commit"] != record["commit"]]
    if is_ratio and not last:
        return ""
    allowed = limit * last[-1] if is_ratio else limit
    if record[figure] <= allowed:  # a NaN is refused
        return ""
    where = f"{record['commit'][:10]} {record['policy']}"
    return f"{where}: {figure} is {record[figure]:.3g}, allowed {allowed:.3g} ({rule})"


KEYS = ("source", "target", "policy")


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Draw the errors over the commits, a line for each policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(
        2, sharex=True, figsize=(9, 6), height_ratios=(3, 1), layout="constrained"
    )
    commits = list(dict.fromkeys(r["commit"] for r in records))
    for policy in dict.fromkeys(r["policy"] for r in records):
        own = [r for r in records if r["policy"] == policy]
        at = [commits.index(r["commit"]) for r in own]
        [line] = top.plot(
            at, [r["rel_l2"] for r in own], "o-", label=f"{policy}: relative L2"
        )
        shade = {"color": line.get_color(), "linestyle": ":"}
        top.plot(at, [r["max"] for r in own], label=f"{policy}: largest", **shade)
        wrong = [n for n, r in zip(at, own) if r["faults"]]
        top.plot(wrong, [r["rel_l2"] for r in own if r["faults"]], "rx", markersize=11)
        bottom.plot(
            at, [1e6 * r["predicted_seconds"] for r in own], color=line.get_color()
        )
    top.set_yscale("log")
    top.set_ylabel("error against float64, of the rms")
    top.set_title(f"{records[-1]['source']} on {records[-1]['target']} (x: a fault)")
    top.legend(frameon=False)
    bottom.set_ylabel("predicted µs")
    bottom.set_ylim(0, 1.3e6 * max(r["predicted_seconds"] for r in records))
    places = range(0, len(commits), -(-len(commits) // 40))
    bottom.set_xticks(places, [commits[n][:7] for n in places], rotation=90)
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure the working tree, or the commits since a revision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="file.py:function")
    parser.add_argument("--policy", action="append", help="repeatable; default: bf16")
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--append", type=Path, help="a file of JSON lines")
    parser.add_argument("--fail-if", help="'rel_l2 > 1.2x' of the last, or a number")
    parser.add_argument("--since", help="measure all commits after this one first")
    parser.add_argument("--plot", type=Path, help="a picture over the commits")
    parser.add_argument("--folder", type=Path, default=Path(), help="of the source")
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    options = parser.parse_args()
    options.policy = options.policy or ["bf16"]
    old = kept(options.append)
    if options.since:
        done = {r["commit"] for r in old if r["source"] == options.source}
        commits = git("rev-list", "--reverse", f"{options.since}..HEAD").split()
        todo = [commit for commit in commits if commit not in done]
        new = [record for commit in todo for record in elsewhere(commit, options)]
    else:
        folder = options.folder.resolve()
        new = [
            measured(options.source, options.target, p, folder) for p in options.policy
        ]
    kept_now, refused = [], []
    for record in new:
        before = [*old, *kept_now]
        why = refusal(options.fail_if, record, before) if options.fail_if else ""
        (refused if why else kept_now).append(why or record)
    if options.append:  # what a rule refuses is nothing to hold the next one against
        with options.append.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in kept_now)
    for record in new:
        text = f"{record['commit'][:10]} {record['policy']}: relative L2 "
        text += f"{record['rel_l2']:.3g}, largest {record['max']:.3g}, "
        text += f"{record['faults']} faults"
        print(json.dumps(record) if options.json else text)
    if options.plot and (old or new):
        draw([*old, *new], options.plot)
    if refused:
        raise SystemExit("\n".join(refused))


if __name__ == "__main__":
    main()
