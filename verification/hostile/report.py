"""Writes the results: report.json, report.md and an HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from verification.hostile.environment import Environment
from verification.hostile.trial import AttackResult

_STYLE = (
    ":root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}body{max-width:90rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;"
    "padding:.3rem .7rem .3rem 0;border-bottom:1px solid #8884}.held{color:#1a7f37}.FAILS{color:#cf222e}"
    ".skipped{color:#8a8a8a}small{color:#8a8a8a}"
)
_HEADS = ("attack", "attacker", "verdict", "neighbour's submit p99", "recovery", "web", "figures", "seen")


def write_report(env: Environment, results: Sequence[AttackResult], seconds: float) -> Path:
    """Write the report; return the path of the page."""
    found = summary(env, results, seconds)
    (env.report / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    (env.report / "report.md").write_text(markdown(found))
    page = env.report / "report.html"
    page.write_text(html(found), encoding="utf-8")
    return page


def summary(env: Environment, results: Sequence[AttackResult], seconds: float) -> dict[str, Any]:
    """Return the report as JSON data. seconds: duration of the whole run."""
    return {
        "verdict": "not held" if any(result.wrongs for result in results) else "every attack was held",
        "seed": env.options.seed,
        "seconds": round(seconds),
        "system": "its own" if env.options.starts_its_own else env.url,
        "floor_ms": round(env.options.floor_seconds * 1000),
        "attacks": [result.as_json() for result in results],
    }


def markdown(found: Mapping[str, Any]) -> str:
    """Return the report as a Markdown table. found: from `summary`."""
    rows = [_row(one) for one in found["attacks"]]
    lines = ["| " + " | ".join(_HEADS) + " |", "| " + " | ".join("---" for _ in _HEADS) + " |"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return f"{_intro(found)}\n\n" + "\n".join(lines) + "\n"


def html(found: Mapping[str, Any]) -> str:
    """Return the report as a page without external files. found: from `summary`."""
    head = "".join(f"<th>{name}</th>" for name in _HEADS)
    body = "".join(
        "<tr>" + "".join(f"<td class={one['verdict']}>{escape(cell)}</td>" for cell in _row(one)) + "</tr>"
        for one in found["attacks"]
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>prove --hostile: {escape(found['verdict'])}</title><style>{_STYLE}</style>"
        f"<h1>prove --hostile</h1><p>{escape(_intro(found))}</p><table><tr>{head}</tr>{body}</table></html>\n"
    )


def _intro(found: Mapping[str, Any]) -> str:
    return (
        f"{found['verdict'].capitalize()}. Seed {found['seed']}, {found['seconds']} s, system: "
        f"{found['system']}. The neighbour's p99 may be three times its quiet value, or "
        f"{found['floor_ms']} ms where that is more."
    )


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    if one["skipped"]:
        return (f"{one['attack']} {one['title']}", one["attacker"], "skipped", "", "", "", "", one["skipped"])
    recovery = one["recovery_seconds"]
    reported = ", ".join(f"{name} {value}" for name, value in one["figures"].items())
    answers = ", ".join(f"{times} × {label}" for label, times in one["answers"].items())
    return (
        f"{one['attack']} {one['title']}",
        one["attacker"],
        one["verdict"],
        f"{one['quiet_p99_ms']} → {one['neighbour'].get('submit_p99_ms', '–')} ms",
        "–" if recovery is None else f"{recovery} s",
        f"{one['peak_mb'].get('web', '–')} MB",
        "; ".join(part for part in (reported, answers) if part),
        "; ".join(one["wrong"]),
    )
