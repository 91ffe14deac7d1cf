"""The `neuronjax` command, one file per family of commands.

A command is a function that reads its options, calls a public verb and prints the
result. Its file is imported when the command is used. A `NeuronJaxError` is
shown as its message, without a traceback, and ends with status 2.
"""

from neuronjax.cli.application import COMMANDS, app

__all__ = ["app"]

# In the order of `--help`; a command has the name of its function.
for file, names in (
    ("tour", "quickstart"),
    ("running", "run"),
    ("asking", "check"),
    ("judging", "judge nki-diff"),
    ("asking", "compare tolerance compare-dump search"),
    ("tracking", "track"),
    ("studying", "study"),
    ("timing", "profile compare-targets"),
    ("money", "estimate estimate-serving"),
    ("hardware", "ls"),
    ("coverage", "ops"),
    ("conformance", "conformance"),
    ("silicon", "silicon-kit silicon-check"),
    ("collectives", "cc-test"),
    ("timing", "constants"),
    ("about", "exactness bench version"),
):
    COMMANDS.update(dict.fromkeys(names.split(), f"{__name__}.{file}"))
