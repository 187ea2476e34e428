"""What the line knows of one job that waits or might: the answer of `lua/outlook.lua`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

MOST_SERVERS = 32
"""Servers whose slots are looked at one by one; of more, so many by chance."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """rebuilding: the index is not whole, and nothing else is known.

    held: the attempt that has a slot for the job. parked: letters for why its tenant gets none. position:
    estimated tickets ahead plus one; own_ahead: of its own tenant and band, for models that share its
    servers; higher_bands: tickets there; tenants: who take turns in its band. running, most_running: jobs
    of its tenant now, and at most (None: no limit; then they are not counted). lead_seconds: GPU-seconds
    by which its tenant is ahead of the one whose turn it is. estimate_seconds: of a run of this tenant
    and model; mean_seconds: of the pool's waiting jobs. working_slots: of the pool. servers: that are on
    and run the model; looked_at: so many of them. slots: theirs, by what keeps each from the job: free,
    busy, resting, circuit, quarantined, off. free_seconds: since one of them is; asked_seconds: since a
    worker asked for work that could use a free one; None: none ever did. guess_seconds, p50_log, p90_log,
    seen: see `forecast.lua`. passed_over, most_passed_over: how often others went in its place, for a model
    that is loaded or on the server that it avoids; patience_seconds: how long the former may still happen.
    """

    rebuilding: bool = False
    held: str | None = None
    in_line: bool = False
    parked: str = ""
    fifo: bool = False
    position: int = 1
    own_ahead: int = 0
    higher_bands: int = 0
    tenants: int = 0
    running: int = 0
    most_running: int | None = None
    lead_seconds: float = 0.0
    estimate_seconds: float = 1.0
    mean_seconds: float = 1.0
    working_slots: int = 0
    servers: int = 0
    looked_at: int = 0
    slots: Mapping[str, int] = field(default_factory=dict)
    rest_seconds: float = 0.0
    circuit_seconds: float = 0.0
    model_circuit: str = "closed"
    model_circuit_seconds: float = 0.0
    free_seconds: float = 0.0
    asked_seconds: float | None = None
    guess_seconds: float = 0.0
    seen: int = 0
    p50_log: float = 0.0
    p90_log: float = 0.0
    passed_over: int = 0
    most_passed_over: int = 0
    patience_seconds: float = 0.0


def read_outlook(answer: str) -> Outlook:
    found = json.loads(answer)
    known = {one.name for one in fields(Outlook)}
    values = {name: value for name, value in found.items() if name in known}
    values["held"] = values.get("held") or None
    if values.get("asked_seconds", 0) < 0:
        values["asked_seconds"] = None
    return Outlook(**values)
