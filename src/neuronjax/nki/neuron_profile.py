"""A `neuron-profile` for harnesses, which reads files that neuronjax wrote.

    neuron-profile capture -n file.neff -s profile.ntff [--num-exec N]
    neuron-profile view -n file.neff -s profile.ntff --output-format summary-json

`capture` executes nothing: it writes the content of the `.neff` under the names that
the vendor's tool gives to profiles. `view` prints `{kernel: summary}` on one line; the
field `predicted` says that nothing was measured.

This file imports nothing of the package: a harness calls it once per measurement, and
the package imports JAX.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_FORMATS = ("summary-json", "summary-text")
_REMEDY = "save profiles with nki.baremetal, nki.benchmark or nki.profile of neuronjax"


class _NotOurs(Exception):
    """The reason why a file cannot be shown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 1 if a file is wrong, or 2 if an option is."""
    parser = argparse.ArgumentParser("neuron-profile", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (capture, view):
        subparser = commands.add_parser(command.__name__, help=command.__doc__)
        subparser.set_defaults(run=command)
        subparser.add_argument(
            "-n", "--neff-path", type=Path, default=Path("file.neff")
        )
        subparser.add_argument("-s", "--session-file", type=Path)
        if command is capture:
            subparser.add_argument("--num-exec", type=int, default=1)
            subparser.add_argument("--profile-nth-exec", type=int, default=0)
        else:
            subparser.add_argument("--output-format", choices=_FORMATS, required=True)
    options, others = parser.parse_known_args(arguments)
    if others:
        print(f"neuron-profile of neuronjax ignores {others}", file=sys.stderr)
    try:
        options.run(options)
    except _NotOurs as error:
        print(f"neuron-profile of neuronjax: {error}", file=sys.stderr)
        return 1
    return 0


def capture(options: argparse.Namespace) -> None:
    """Write the profile that a .neff holds."""
    content = _content(options.neff_path)
    for path in _captured(options):
        path.write_text(json.dumps(content, indent=2) + "\n")


def _captured(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the paths of profiles: one, or one for each n-th execution."""
    session = options.session_file or Path("profile.ntff")
    nth = options.profile_nth_exec
    if not nth:
        yield session
    for number in range(nth, options.num_exec + 1, nth) if nth else ():
        yield session.with_name(f"{session.stem}_exec_{number}{session.suffix}")


def view(options: argparse.Namespace) -> None:
    """Print the summary of a profile."""
    content = _content(options.session_file or options.neff_path)
    summary = content["summary"]
    if options.output_format == "summary-json":
        print(json.dumps({content["kernel"]: summary}))
        return
    for name, value in summary.items():
        print(name, value)


def _content(path: Path) -> dict:
    """Return the content of a file that neuronjax wrote; refuse every other file."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise _NotOurs(f"{path}: {error.strerror}; {_REMEDY}") from None
    except (ValueError, RecursionError):
        raise _NotOurs(f"{path} was not written by neuronjax; {_REMEDY}") from None
    if not isinstance(content, dict) or not isinstance(content.get("kernel"), str):
        raise _NotOurs(f"{path} was not written by neuronjax; {_REMEDY}")
    if not isinstance(content.get("summary"), dict):
        raise _NotOurs(f"{path} has no summary of latencies: {content.get('unpriced')}")
    return content


if __name__ == "__main__":
    sys.exit(main())
