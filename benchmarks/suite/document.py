"""Writes a report's figures into docs/reference/benchmarks.md, between its markers, and the plots beside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT

from .goals import goals, wrongs
from .page import file_of
from .pictures import pictures
from .report import goal_table, read
from .tables import conditions, tables

DOCUMENT = ROOT / "docs" / "reference" / "benchmarks.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def write_docs(report: Path, document: Path = DOCUMENT) -> list[Path]:
    """Write the files; return their paths. Raises FileNotFoundError without a report."""
    found = read(report)
    folder = document.with_suffix("")
    drawn = pictures(found["results"])
    text = document.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    written = [document]
    for name, svg in drawn.items():
        written.append(folder / f"{name}.svg")
        written[-1].write_text(svg)
    body = "\n\n".join(_sections(found, drawn, folder.name))
    document.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}")
    return written


def _sections(found: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> Iterator[str]:
    results: Mapping[str, Mapping[str, Any]] = found["results"]
    yield goal_table(goals(results))
    for text in wrongs(results):
        yield f"Not correct: {text}"
    read = tables(results)
    for name, one in results.items():
        yield f"### {name}"
        for contender, why in one["skipped"].items():
            yield f"Left out: {contender}: {why}"
        for picture in drawn:
            if file_of(picture) == name:
                yield f"![{picture.replace('-', ' ')}]({folder}/{picture}.svg)"
        for table in read.get(name, ()):
            yield f"{table.title}:\n\n{table.markdown()}"
    table = conditions(results)
    yield f"### {table.title}\n\n{table.markdown()}"
