"""The dashboard's labels: an icon and a text for each state, so that colour is never the only signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpus.protocol import DesiredState
from gpus.reports import CellState

CELL_ICONS = {
    CellState.FREE: "radio_button_unchecked",
    CellState.BUSY: "play_circle",
    CellState.RESTING: "bedtime",
    CellState.DRAINING: "hourglass_bottom",
    CellState.QUARANTINED: "shield",
    CellState.OFF: "power_settings_new",
    CellState.SICK: "heart_broken",
    CellState.UNKNOWN: "help",
}
CELL_MEANINGS = {
    CellState.FREE: "ready for the next job",
    CellState.BUSY: "running a job",
    CellState.RESTING: "free, but its server reported that it is busy, or its circuit is open",
    CellState.DRAINING: "running its last job; no other one starts",
    CellState.QUARANTINED: "may still be busy with a lost run; probed until proven free",
    CellState.OFF: "takes no jobs",
    CellState.SICK: "free, but its server is unhealthy",
    CellState.UNKNOWN: "Redis has no entry for this slot",
}
SWITCHES = {
    DesiredState.ON: ("Switch on", "power_settings_new", ""),
    DesiredState.DRAINING: (
        "Drain",
        "hourglass_bottom",
        "Running jobs finish. No new job starts.",
    ),
    DesiredState.OFF: (
        "Switch off",
        "power_off",
        "Running jobs are interrupted now and return to their places in the queue. It costs them no retry.",
    ),
}
"""Label, icon, and the text of the confirmation; switching on needs none."""


def age(seconds: float | None) -> str:
    """Format an age for a cell: ``0 s``, ``59 s``, ``7 m``, ``3 h 20 m``, ``2 d 4 h``; None is empty."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if minutes < 60:
        return f"{minutes} m"
    if hours < 24:
        return f"{hours} h {minutes % 60} m" if minutes % 60 else f"{hours} h"
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


def rate(per_minute: float) -> str:
    """Format a rate: ``0``, ``0.25``, ``12.5``, ``340``."""
    if per_minute >= 100:
        return f"{per_minute:,.0f}"
    return f"{per_minute:.1f}" if per_minute >= 10 else f"{per_minute:.2f}".rstrip("0").rstrip(".")


def measured(telemetry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format a worker's telemetry of its machine as (name, text) pairs; unknown values are left out."""
    gpu = telemetry.get("gpu") or {}
    found = []
    if gpu.get("utilisation") is not None:
        found.append(("GPU", f"{gpu['utilisation']:.0f} %"))
    if gpu.get("total_mb") and gpu.get("used_mb") is not None:
        found.append(("VRAM", f"{gpu['used_mb'] / 1024:.1f} of {gpu['total_mb'] / 1024:.1f} GB"))
    if gpu.get("temperature") is not None:
        found.append(("Temperature", f"{gpu['temperature']} °C"))
    if gpu.get("power") is not None:
        found.append(("Power", f"{gpu['power']:.0f} W"))
    if telemetry.get("gpu_error"):
        found.append(("GPU", f"can't be read: {telemetry['gpu_error']}"))
    if telemetry.get("cpu_percent") is not None:
        found.append(("CPU", f"{telemetry['cpu_percent']:.0f} %"))
    if telemetry.get("ram_total_mb") and telemetry.get("ram_used_mb") is not None:
        used, total = telemetry["ram_used_mb"] / 1024, telemetry["ram_total_mb"] / 1024
        found.append(("RAM", f"{used:.1f} of {total:.1f} GB"))
    found.append(("Loaded", ", ".join(telemetry.get("warm", ())) or "none"))
    return found
