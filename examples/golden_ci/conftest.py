"""Compiled programs are kept between runs, in a folder that CI can restore."""

from __future__ import annotations

import neuronjax

KEPT = neuronjax.keep_compiled(".neuronjax-cache")


def pytest_report_header() -> str:
    """Print the folder, whose name is the key of the machine and the versions."""
    return f"compiled programs: {KEPT}"
