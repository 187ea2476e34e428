"""The report as one self-contained HTML file. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .options import BENCHMARKS
from .pictures import pictures
from .tables import Table, conditions, tables

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; }
td, th { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }
th { font-weight: 600; } .yes { color: #1a7f37; } .no { color: #cf222e; font-weight: 600; }
small, .quiet { color: #6e7781; } .wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; margin: .8rem 0; }
@media (prefers-color-scheme: dark) { .yes { color: #3fb950; } .no { color: #ff7b72; } }
"""
_MARKS = {True: "<span class=yes>met</span>", False: "<span class=no>not met</span>", None: "–"}


def page(found: Mapping[str, Any]) -> str:
    """Return the page. found: bench.json."""
    results: Mapping[str, Mapping[str, Any]] = found["results"]
    drawn, read = pictures(results), tables(results)
    known = [goal for goal in found["goals"] if goal["met"] is not None]
    met = sum(goal["met"] for goal in known)
    parts = [
        f"<p>{met} of {len(known)} goals that were measured are met.</p>",
        *(f"<p class=no>Not correct: {escape(text)}</p>" for text in found["wrong"]),
        _table(
            ("benchmark", "goal", "measured", ""),
            [
                [
                    escape(goal["benchmark"]),
                    _inline(goal["goal"]),
                    escape(goal["measured"]),
                    _MARKS[goal["met"]],
                ]
                for goal in found["goals"]
            ],
        ),
    ]
    for name, one in results.items():
        parts.append(
            f"<h2 id={name}>{escape(name)}</h2><p class=quiet>{escape(BENCHMARKS.get(name, ''))}</p>"
        )
        parts += [
            f"<p class=quiet>Left out: {escape(contender)}: {escape(why)}</p>"
            for contender, why in one["skipped"].items()
        ]
        parts += [svg for file, svg in drawn.items() if file_of(file) == name]
        parts += [_shown(table) for table in read.get(name, ())]
    parts.append(_shown(conditions(results)))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Benchmarks</title><style>{_STYLE}</style><h1>Benchmarks</h1>" + "".join(parts) + "</html>\n"
    )


def file_of(picture: str) -> str:
    """Return the benchmark of a picture."""
    first = picture.partition("-")[0]
    return {"gaps": "utilisation", "cpu": "utilisation", "end": "end-to-end"}.get(first, first)


def _shown(table: Table) -> str:
    heads = [escape(head) for head in table.heads]
    rows = [[_inline(cell) for cell in row] for row in table.rows]
    return f"<h3>{escape(table.title)}</h3>{_table(heads, rows)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _inline(text: str) -> str:
    """Render the two marks of our tables: `code` and **bold**."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
