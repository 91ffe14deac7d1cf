"""`nj.judge` without a child process: for candidates that do no harm, in less time.

The fence around a candidate is what a child is for; `test_guard` and `test_cheats` have
it. Everything else of a verdict is the same.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from neuronjax.diagnostics.judging import tracing, tracing_child
from neuronjax.diagnostics.judging.guard import Limits
from neuronjax.diagnostics.judging.sandbox import Ended


def judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a candidate is traced in this process."""

    def run_here(
        module: str, job: Mapping[str, Any], wanted: tuple[str, ...], limits: Limits
    ) -> Ended:
        assert module == tracing_child.__name__
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", list(sys.path))
            status, program = tracing_child.outcome(json.loads(json.dumps(job)))
        status["forbidden"] = []
        files = {tracing_child.STATUS: json.dumps(status).encode()}
        if program:
            files[tracing_child.PROGRAM] = program
        return Ended(how="", files=files, printed="")

    importlib.invalidate_caches()
    monkeypatch.setattr(tracing, "run_child", run_here)
