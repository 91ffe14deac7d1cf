"""The `neuronjax` command, one file per family of commands.

    running.py     run          a program or a script, on an emulated chip
    asking.py      check        what the real compiler would refuse
                   compare      which op errs, and where the errors begin
                   tolerance    how large an error a correct result may have
                   compare-dump  tensors of a chip or another framework
                   search       the lowest precision within a tolerance
    tracking.py    track        errors against float64, commit by commit
    judging.py     judge        a kernel: right, legal, safe, how fast
                   nki-diff     what a kernel loses by another NKI release
    hardware.py    ls           chips, instances, engines
    collectives.py cc-test      what a collective would take
    timing.py      profile      where the time of a program goes
                   compare-targets, constants  on several chips; the model's figures
    money.py       estimate     what training costs
                   estimate-serving  what served tokens cost
    studying.py    study        does it train, and what does it cost
    coverage.py    ops          StableHLO and CHLO, op by op
    conformance.py conformance  whether another implementation gives the same bits
    silicon.py     silicon-kit, silicon-check  whether a real chip gives the same bits
    tour.py        quickstart   a GPT, natively and emulated
    about.py       exactness, bench, version

A command is a function that reads its options, calls a public verb and prints the
result. Its file is imported when the command is used. A `NeuronJaxError` is
shown as its message, without a traceback, and ends with status 2.
"""

from neuronjax.cli.application import COMMANDS, app, main

__all__ = ["app", "main"]

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
