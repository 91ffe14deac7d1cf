"""Where the faulty line of a small program is: the one that says so."""

import inspect


def marked_line(function):
    """`file:line` of the line of a function that ends with "# here"."""
    lines, start = inspect.getsourcelines(function)
    [found] = [n for n, line in enumerate(lines, start) if line.endswith("# here\n")]
    return f"{inspect.getsourcefile(function)}:{found}"
