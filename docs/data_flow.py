"""The drawing of the data flow, docs/images/data_flow.svg: `python docs/figures.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "data_flow.svg"
WIDTH, HEIGHT = 760, 536
#: Read on a light page and on a dark one: there is no background.
_LINE = "#78909c"
_HEAD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"
 font-family="Helvetica, Arial, sans-serif" font-size="14">
<title>From a JAX function to values, and to seconds</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"
 markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{_LINE}"/></marker></defs>
"""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A step or a thing.

    Attributes:
        x: of its middle.
        y: of its upper edge.
        lines: the first is its name, the others say what it is.
        fill: colour.
        width: in pixels.
    """

    x: int
    y: int
    lines: tuple[str, ...]
    fill: str
    width: int = 250

    @property
    def bottom(self) -> int:
        """Of its lower edge."""
        return self.y + 16 + 18 * len(self.lines)

    def svg(self) -> str:
        """As an element."""
        height = self.bottom - self.y
        parts = [
            f'<rect x="{self.x - self.width // 2}" y="{self.y}" width="{self.width}" '
            f'height="{height}" rx="5" fill="{self.fill}" stroke="{_LINE}"/>'
        ]
        for n, line in enumerate(self.lines):
            weight = ' font-weight="bold"' if n == 0 else ' fill="#37474f"'
            parts.append(
                f'<text x="{self.x}" y="{self.y + 22 + 18 * n}" '
                f'text-anchor="middle"{weight}>{line}</text>'
            )
        return "\n".join(parts)


_DATA, _STEP = "#eceff1", "#ffe0d6"
PROGRAM = Box(
    x=380,
    y=20,
    width=520,
    fill=_DATA,
    lines=("a JAX function, or a saved program", "StableHLO, jax.export, HLO"),
)
CAPTURE = Box(
    x=380,
    y=108,
    width=520,
    fill=_STEP,
    lines=("capture", "StableHLO for platform neuron, decoded once into a Program"),
)
LOWER = Box(
    x=380,
    y=196,
    width=520,
    fill=_STEP,
    lines=(
        "lower",
        "Program → Instructions, under a target and a policy;",
        "casts, rounding points and orders of addition are theirs",
    ),
)
RUN = Box(
    x=200,
    y=320,
    width=320,
    fill=_STEP,
    lines=("run", "engines: Instruction → arrays,", "all inside one jax.jit"),
)
PRICE = Box(
    x=560,
    y=320,
    width=320,
    fill=_STEP,
    lines=("price", "cost: Instruction → cycles and bytes;", "queues, memory, network"),
)
VALUES = Box(
    x=200,
    y=444,
    width=320,
    fill=_DATA,
    lines=("values", "results, statistics of casts,", "the first divergence, goldens"),
)
TIMES = Box(
    x=560,
    y=444,
    width=320,
    fill=_DATA,
    lines=(
        "seconds and dollars",
        "profile, roofline, memory plan,",
        "traces, estimates",
    ),
)
_ARROWS = (
    (PROGRAM, CAPTURE),
    (CAPTURE, LOWER),
    (LOWER, RUN),
    (LOWER, PRICE),
    (RUN, VALUES),
    (PRICE, TIMES),
)


def _arrow(start: Box, end: Box) -> str:
    # From a wide box straight down onto a narrow one.
    return (
        f'<line x1="{end.x}" y1="{start.bottom}" x2="{end.x}" y2="{end.y - 1}" '
        f'stroke="{_LINE}" stroke-width="1.5" marker-end="url(#tip)"/>'
    )


def draw() -> str:
    """The drawing as SVG."""
    boxes = dict.fromkeys(box for arrow in _ARROWS for box in arrow)
    elements = [*(box.svg() for box in boxes), *(_arrow(*arrow) for arrow in _ARROWS)]
    return "\n".join((_HEAD, *elements, "</svg>\n"))


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
