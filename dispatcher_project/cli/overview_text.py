"""`overview` as lines for a terminal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dispatcher_project.cli.overview import MOST_COUNTED
from dispatcher_project.cli.paint import Paint, age, fitted, plain, table
from foundation.texts import counted
from gpus.leasing.clock import ClockReport

MOST_MESSAGE = 80
SILENT_SECONDS = 10.0
"""So long after beat's last tick something is wrong."""
_CELLS = {
    "free": ("·", "green"),
    "busy": ("█", "green"),
    "resting": ("z", "yellow"),
    "draining": ("▼", "yellow"),
    "quarantined": ("!", "red"),
    "sick": ("x", "red"),
    "off": ("–", "dim"),
    "unknown": ("?", "yellow"),
}
_STATES = {"drained": "dim", "draining": "yellow", "stopping": "yellow", "off": "dim", "unknown": "yellow",
           "paused": "yellow"}  # fmt: skip

_ALWAYS = ("waiting", "running", "retrying")
_QUEUE_HEAD = (
    *("model", "waiting", "parked", "oldest", "drains in", "running", "retrying"),
    *("done 1h", "failed 1h", "wait p50", "wait p95", "run p50"),
)


def overview_lines(seen: Mapping[str, Any], paint: Paint, *, columns: int, rows: int = 0) -> list[str]:
    """rows: of the terminal, 0 for as many as there are. The fleet gives way first."""
    head = _head(seen, paint)
    queues = ["", *_queues(seen, paint)]
    failures = ["", *_failures(seen, paint)] if seen["failures"] else []
    fleet = ["", *_fleet(seen, paint)]
    room = max(rows - len(head) - len(queues) - len(failures), 4)
    if rows and len(fleet) > room:
        hidden = len(fleet) - room + 1
        fleet = [*fleet[: room - 1], paint(f"… {hidden} more lines: a higher terminal shows them", "dim")]
    lines = [*head, *fleet, *queues, *failures]
    return [fitted(line, columns) for line in lines[: rows or None]]


def _head(seen: Mapping[str, Any], paint: Paint) -> list[str]:
    at: datetime = seen["at"]
    away = ", ".join(seen["away"])
    redis = paint(f"Redis does not serve {plain(away, 40)}", "red") if away else paint("Redis ok", "green")
    tick = seen["last_tick_seconds"]
    silent = tick is None or tick > SILENT_SECONDS
    beat = paint(
        "beat never ticked" if tick is None else f"beat {age(tick)} ago", "red" if silent else "green"
    )
    counts = "  ".join(
        f"{number} {name}"
        for name in ("waiting", "running", "retrying", "scheduled", "cancelling")
        if (number := _sum(seen, name)) or name in _ALWAYS
    )
    letters, pending = seen["dead_letters"], seen["callbacks_pending"]
    lines = [
        f"{paint('GPU dispatcher', 'bold')}  {at:%Y-%m-%d %H:%M:%S} UTC  {redis}  {beat}",
        f"{counts}  "
        + _red_if(letters, f"{_bounded(letters)} dead letter{'' if letters == 1 else 's'}", paint)
        + f"  {_bounded(pending)} callback{'' if pending == 1 else 's'} pending",
    ]
    if seen["clocks_off"]:
        off = ClockReport(seen["clocks_off"])
        lines.append(paint(f"CLOCKS DISAGREE: {off}; deadlines and retention stand still", "red"))
    for index in seen["layouts"]:
        goes = f", being switched to {index['next_layout']}" if index["next_layout"] else ""
        what = f"index {index['fleet']}: layout {index['layout']}{goes}"
        known = Counter(f"{one['kind']} of layout {one['layout']}" for one in index["others"])
        apart = ", ".join(f"{count} {name}" for name, count in sorted(known.items()))
        lines.append(paint(f"UPGRADE {what}" + (f"; apart: {apart}" if apart else ""), "yellow"))
    for pause in seen["pauses"]:
        what = f"{pause['kind']} {pause['name']}".strip()
        why = f": {plain(pause['reason'], 60)}" if pause["reason"] else ""
        by = f"since {pause['since']:%H:%M} by {plain(pause['by'], 40)}"
        lines.append(paint(f"PAUSED {what} {by}{why}", "yellow"))
    return lines


def _sum(seen: Mapping[str, Any], name: str) -> int:
    return sum(queue[name] or 0 for queue in seen["queues"])


def _bounded(count: int) -> str:
    return f"{count} or more" if count >= MOST_COUNTED else str(count)


def _red_if(bad: object, text: object, paint: Paint) -> str:
    return paint(text, "red") if bad else str(text)


def _fleet(seen: Mapping[str, Any], paint: Paint) -> list[str]:
    if not seen["fleet"]:
        return [paint("no server is registered", "dim")]
    rows = [
        (
            server["name"],
            server["pool"],
            server["desired"] if server["desired"] == "on" else paint(server["desired"], "yellow"),
            _observed(server, paint),
            "".join(paint(*_CELLS[slot["state"]]) for slot in server["slots"]),
            _doing(server),
        )
        for server in seen["fleet"]
    ]
    used = Counter(slot["state"] for server in seen["fleet"] for slot in server["slots"])
    legend = [f"{paint(*_CELLS[state])} {state} {used[state]}" for state in _CELLS if used[state]]
    left = seen["servers"] - len(seen["fleet"])
    lines = table(("server", "pool", "wanted", "is", "slots", ""), rows, paint)
    return [
        *lines,
        *([f"… {counted(left, 'more server')}"] if left > 0 else []),
        *(["  ".join(legend)] if legend else []),
    ]


def _observed(server: Mapping[str, Any], paint: Paint) -> str:
    if server["healthy"] is False:
        return paint("sick", "red")
    style = _STATES.get(server["observed"])
    return paint(server["observed"], style) if style else str(server["observed"])


def _doing(server: Mapping[str, Any]) -> str:
    """What ails it, else what its slots do: by model, the longest first."""
    if server["healthy"] is False:
        return plain(server["error"], MOST_MESSAGE)
    models: dict[str, list[float]] = {}
    for slot in server["slots"]:
        if slot["state"] in ("busy", "draining") and slot["seconds"] is not None:
            models.setdefault(slot["model"] or "?", []).append(slot["seconds"])
    busy = sorted(models.items(), key=lambda item: -max(item[1]))
    told = [f"{model} {len(held)}× up to {age(max(held))}" for model, held in busy]
    held_back = [slot for slot in server["slots"] if slot["state"] == "quarantined"]
    if held_back:
        told.append(f"quarantined: {plain(held_back[0]['reason'], 40)}")
    return "  ".join(told)


def _queues(seen: Mapping[str, Any], paint: Paint) -> list[str]:
    rows = [
        (
            queue["model"],
            "?" if queue["waiting"] is None else str(queue["waiting"]),
            str(queue["parked"]),
            age(queue["oldest_seconds"]),
            age(queue["drain_seconds"]),
            str(queue["running"]),
            str(queue["retrying"]),
            str(queue["completed_1h"]),
            _red_if(queue["failed_1h"], queue["failed_1h"], paint),
            age(queue["wait_p50_seconds"]),
            age(queue["wait_p95_seconds"]),
            age(queue["run_p50_seconds"]),
        )
        for queue in seen["queues"]
    ]
    if not rows:
        return [paint("no model is registered", "dim")]
    return table(_QUEUE_HEAD, rows, paint, right=_QUEUE_HEAD[1:])


def _failures(seen: Mapping[str, Any], paint: Paint) -> list[str]:
    rows = [
        (
            f"{one['at']:%H:%M:%S}",
            one["job_id"],
            one["model"],
            paint(one["error_code"], "red"),
            plain(one["error_message"], MOST_MESSAGE),
        )
        for one in seen["failures"]
    ]
    return table(("failed", "job", "model", "error", ""), rows, paint)
