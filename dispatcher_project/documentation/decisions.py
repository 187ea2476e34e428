"""docs/adr/index.md: the architecture decision records, by number and title."""

from __future__ import annotations

import re

from dispatcher_project.supervisor.data_folder import ROOT

_NUMBER = re.compile(r"^# (?:ADR )?\d*[.:]? *")
FOLDER = ROOT / "docs" / "adr"


def decisions_page() -> str:
    """Return the whole page, Markdown."""
    lines = [
        "# Decisions",
        "",
        "<!-- Made from the titles by `python3 manage.py write_docs`; don't edit. -->",
        "",
        "Each record names a decision, its reasons with the figures, and what was rejected.",
        "",
        "| | |",
        "| --- | --- |",
    ]
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        title = _NUMBER.sub("", path.read_text().partition("\n")[0])
        lines.append(f"| {path.name[:4]} | [{title}]({path.name}) |")
    return "\n".join([*lines, ""])
