"""The IPython magics `%emulate` and `%%emulate` of `%load_ext neuronjax`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from IPython.core.error import UsageError

from neuronjax.api.emulated import emulated
from neuronjax.errors import InvalidProgramError


def load(shell: Any) -> None:
    """Register the magics in an IPython shell."""
    opened = ExitStack()

    def emulate(line: str, cell: str | None = None) -> None:
        """Emulate functions that later cells or this cell jit; see `nj.emulated`.

        %emulate trn2 fp8     from here on, until %emulate gets another target or policy
        %emulate off          end the emulation
        %%emulate trn2 fp8    in this cell alone
        """
        words = line.split()
        if cell is None and words == ["off"]:
            opened.close()
            return
        if not 1 <= len(words) <= 2:
            raise UsageError(f"%emulate takes TARGET [POLICY] or off, not {line!r}")
        setting = dict(zip(("target", "policy"), words, strict=False))
        try:
            with emulated(**setting):  # raises for unknown names; changes nothing
                pass
        except InvalidProgramError as error:
            raise UsageError(str(error)) from None
        if cell is None:
            opened.close()
            opened.enter_context(emulated(**setting))
            return
        # Errors refer to the number and the lines of the notebook's cell.
        with emulated(**setting):
            shell.execution_count -= 1
            done = shell.run_cell(cell if cell.startswith("%%") else f"#\n{cell}")
            shell.execution_count += 1
        if not done.success:
            raise UsageError("the emulated cell failed")

    shell.register_magic_function(emulate, "line_cell")
