"""The shell blocks of a page: their text, whether a test can run them, and what their output must show.

A block is fenced as `bash`. A comment before it may mark it: `<!-- not run: WHY -->` for one that needs what
a test does not have, `<!-- shows: TEXT -->` for a text that its output holds.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>not run|shows): (?P<words>.+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """not_run: why a test leaves it out, "" for one that is run. shows: what its output must hold, or ""."""

    line: int
    text: str
    not_run: str = ""
    shows: str = ""


def languages(page: Path) -> list[str]:
    """Return the language of each fenced block, "" where none is named."""
    return [found["language"] for found in _FENCE.finditer(page.read_text())]


def shell_blocks(page: Path, language: str = "bash") -> list[Block]:
    """Return the blocks of the page in that language, in order."""
    text = page.read_text()
    return [
        Block(
            line=text.count("\n", 0, found.start("text")) + 1,
            text=textwrap.dedent(found["text"]),
            not_run=found["words"] if found["mark"] == "not run" else "",
            shows=found["words"] if found["mark"] == "shows" else "",
        )
        for found in _FENCE.finditer(text)
        if found["language"] == language
    ]


def script_of(blocks: list[Block]) -> str:
    """Return one script that runs the blocks in turn; a line with a number precedes each one's output."""
    parts = ["set -euo pipefail"]
    for number, block in enumerate(blocks):
        if not block.not_run:
            parts += [f"echo; echo '{mark(number)}'", block.text.rstrip("\n")]
    return "\n".join([*parts, ""])


def mark(number: int) -> str:
    return f"=== block {number} ==="


def output_of(number: int, output: str) -> str:
    """Return what the block printed, "" if it was not reached."""
    return output.partition(f"{mark(number)}\n")[2].partition("\n=== block ")[0]
