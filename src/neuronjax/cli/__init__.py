"""The `neuronjax` command, one file per family of commands.

    running.py     run          a program or a script, on an emulated chip
    asking.py      check        what the real compiler would refuse
                   compare      which op errs, and where the errors begin
                   tolerance    how far off results may be, and still be right
                   compare-dump  tensors of a chip or another framework
                   search       the lowest precision within a tolerance
    judging.py     judge        a kernel: right, legal, safe, how fast
                   nki-diff     what a kernel loses by another NKI release
    hardware.py    ls           chips, instances, engines
    collectives.py cc-test      what a collective would take
    timing.py      profile      where the time of a program goes
                   compare-targets, constants
    money.py       estimate     what training costs
                   estimate-serving  what served tokens cost
    studying.py    study        does it train, and for how many dollars
    coverage.py    ops          StableHLO and CHLO, op by op
    conformance.py conformance  another implementation, bit by bit
    silicon.py     silicon-kit, silicon-check  a real chip, bit by bit
    tour.py        quickstart   a GPT, natively and emulated
    about.py       exactness, bench, version

A command is a function that reads its options and hands over; what it shows is made
elsewhere. A `NeuronJaxError` is shown as its message, without a traceback, and ends
with status 2.
"""

from neuronjax.cli.about import bench, exactness, version
from neuronjax.cli.application import app, main
from neuronjax.cli.asking import check, compare, compare_dump, search, tolerance
from neuronjax.cli.collectives import cc_test
from neuronjax.cli.conformance import conformance
from neuronjax.cli.coverage import ops
from neuronjax.cli.hardware import ls
from neuronjax.cli.judging import judge, nki_diff
from neuronjax.cli.money import estimate, estimate_serving
from neuronjax.cli.running import run
from neuronjax.cli.script import ScriptCommand
from neuronjax.cli.silicon import silicon_check, silicon_kit
from neuronjax.cli.studying import study
from neuronjax.cli.timing import compare_targets, constants, profile
from neuronjax.cli.tour import quickstart

__all__ = ["app", "main"]

# In the order of `--help`; a command is called as its function is.
app.command()(quickstart)
app.command(cls=ScriptCommand)(run)
for command in (
    *(check, judge, nki_diff, compare, tolerance, compare_dump),
    *(
        search,
        study,
        profile,
        compare_targets,
        estimate,
        estimate_serving,
        ls,
        ops,
        conformance,
        silicon_kit,
    ),
    *(silicon_check, cc_test, constants, exactness),
):
    app.command()(command)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)(bench)
app.command()(version)
