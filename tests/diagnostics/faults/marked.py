"""Small programs with a faulty line, which says so, and their healthy twins."""

import inspect

from neuronjax.api.compare import compare


def marked_line(function):
    """`file:line` of the line of a function that ends with "# here"."""
    lines, start = inspect.getsourcelines(function)
    [found] = [n for n, line in enumerate(lines, start) if line.endswith("# here\n")]
    return f"{inspect.getsourcefile(function)}:{found}"


def assert_named(kind, faulty, healthy, arguments, **options):
    """Assert that a fault comes first, on its line, and that its twin has none."""
    report = compare(faulty, **options)(*arguments)
    told = [(fault.kind, fault.record.source) for fault in report.faults]
    assert told[:1] == [(kind, marked_line(faulty))], str(report)
    if healthy is not None:
        report = compare(healthy, **options)(*arguments)
        assert report.faults == (), str(report)
