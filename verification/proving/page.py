"""The report as one self-contained HTML file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; }
td, th { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid #8884; }
th { font-weight: 600; } .n { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: #1a7f37; } .WRONG, .wrong { color: #cf222e; } .skipped { color: #8a8a8a; }
.verdict { font-size: 1.3rem; font-weight: 700; } code { font-size: .9em; } small { color: #8a8a8a; }
.wide { overflow-x: auto; }
@media (prefers-color-scheme: dark) { .ok { color: #3fb950; } .WRONG, .wrong { color: #ff7b72; } }
"""


def page(found: Mapping[str, Any], fates: Sequence[Mapping[str, Any]]) -> str:
    """Return the page. found: report.json. fates: the jobs that did not simply complete."""
    good = found["verdict"] == "nothing is wrong"
    checks = found["conservation_checks"]
    intro = (
        f"{found['jobs']} jobs, seed {found['seed']}, {found['seconds']} s, database {found['database']}, "
        f"system: {found['system']}. Conservation and the laws of every moment were checked "
        f"{checks['looked']} times; {checks['could_not_look']} times the database could not be read."
    )
    parts = [
        f"<p class='verdict {'ok' if good else 'wrong'}'>{escape(found['verdict'].capitalize())}</p>",
        f"<p>{escape(intro)}</p>",
        *(f"<p class=skipped>Not judged: {escape(text)}</p>" for text in found["skipped"]),
        _section("What is wrong", _wrongs(found)) if not good else "",
        _section("Faults", _faults(found["faults"])),
        _section("Totals", _table(("", ""), ((_words(k), _value(v)) for k, v in found["totals"].items()))),
        _section("Memory", _memory(found["memory"])),
        _section(
            f"Jobs that did not simply complete ({len(fates)} shown; all are in jobs.jsonl)", _fates(fates)
        ),
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>prove: {escape(found['verdict'])}</title><style>{_STYLE}</style><h1>prove</h1>"
        + "".join(parts)
        + "</html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2><div class=wide>{body}</div>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _faults(faults: Sequence[Mapping[str, Any]]) -> str:
    heads = ("fault", "expected", "verdict", "recovery", "bound", "running jobs hit", "load", "seen")
    return _table(heads, (_fault(one) for one in faults)) if faults else "<p>None was played.</p>"


def _fault(one: Mapping[str, Any]) -> Sequence[str]:
    verdict = f"<span class={one['verdict']}>{one['verdict']}</span>"
    seen = [*one["wrong"], *one["notes"], *([one["skipped"]] if one["skipped"] else [])]
    seconds = one["recovery_seconds"]
    parts = [f"jobs {one.get('jobs_seconds')} s", f"slots {one.get('slots_seconds')} s"]
    parts += [f"{name} {value} s" for name, value in one.get("signs", {}).items()]
    detail = "" if one["skipped"] else f"<br><small>{escape(', '.join(parts))}</small>"
    return (
        f"<code>{escape(one['fault'])}</code>",
        escape(one["expected"]),
        verdict,
        ("–" if seconds is None else f"{seconds} s") + detail,
        f"{one['bound_seconds']:.0f} s <small>{escape(one['measured_from'])}</small>",
        str(one.get("affected_jobs", "")),
        f"{one['load_average_before']} → {one.get('load_average', '–')}",
        "<br>".join(escape(text) for text in seen),
    )


def _wrongs(found: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{kind}: {count}" for kind, count in found["wrong_by_kind"].items())
    rows = (
        (escape(one["kind"]), f"<code>{escape(one['job'])}</code>", escape(one["text"]))
        for one in found["wrong"]
    )
    return f"<p class=wrong>{escape(counts)}</p>" + _table(("kind", "job", ""), rows)


def _memory(slopes: Sequence[Mapping[str, Any]]) -> str:
    heads = ("process", "pid", "seconds", "MB at first", "MB at last", "MB per hour", "flat")
    names = ("process", "pid", "seconds", "first_mb", "last_mb", "mb_per_hour")
    flat = {True: "yes", False: "<span class=wrong>no</span>", None: "<small>too short to tell</small>"}
    return _table(heads, ([*(escape(str(one[name])) for name in names), flat[one["flat"]]] for one in slopes))


def _fates(fates: Sequence[Mapping[str, Any]]) -> str:
    heads = ("job", "model", "state", "attempts", "GPU runs", "callbacks", "cancel")
    rows = (
        (
            f"<code>{escape(one['job'])}</code>",
            escape(one["model"]),
            escape(f"{one['state']} {one['code']}"),
            "<br>".join(escape(text) for text in one["attempts"]),
            str(one["gpu_runs"]),
            str(one["callbacks"]),
            escape(one["cancel"]),
        )
        for one in fates
    )
    return _table(heads, rows)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return escape(", ".join(f"{name}: {one}" for name, one in value.items()) or "none")
    return escape(str(value))


def _words(name: str) -> str:
    return escape(name.replace("_", " "))
