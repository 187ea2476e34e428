"""The answers about machines, models and controls, as they are on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from foundation.http_api.json_body import Choice, Name, about, choices
from foundation.http_api.openapi import Instant
from gpus.api.bodies import Desired, options
from gpus.health.health import NO_HEALTH, UNHEALTHY, UNREACHABLE
from gpus.models import Pause as PauseRow
from gpus.protocol import CircuitKind, CircuitState
from gpus.registry.recognise import CERTAINTIES

Live = Annotated[bool, about("False: Redis is away; it follows when it is back.")]
_Changed = Annotated[bool, about("False: it was so already.")]
_PauseKind = Annotated[str, choices(PauseRow.Kind)]
_Circuits = Annotated[str, choices(CircuitState)]
_Next = Annotated[str | None, about("URL of the following page.")]


def page_of(row: type[Any]) -> Any:
    """One page of a list with a cursor."""
    fields = {"next": _Next, "previous": str | None, "results": list[row]}  # type: ignore[valid-type]
    return TypedDict(f"{row.__name__.removesuffix('Entry').removesuffix('Summary')}Page", fields)  # type: ignore[operator]


ModelConfig = TypedDict("ModelConfig", {"model": Name, "pool": Name, "fleet": Name, **options()})  # type: ignore[misc]
ModelConfig.__doc__ = "A model as it is configured."


class ModelConfigs(TypedDict):
    results: list[ModelConfig]


class Warning(TypedDict):
    """What the operator should know before the first job."""

    code: Annotated[str, Choice(NO_HEALTH, UNREACHABLE, UNHEALTHY)]
    detail: str


class Registered(TypedDict):
    server: Name
    model: Name
    pool: Name
    fleet: Name
    endpoint: str
    slots: int
    desired: Desired
    host: str | None
    machine: str | None
    live: Live
    warnings: list[Warning]


class Proposal(TypedDict):
    """How a model of the server could be registered."""

    register: Annotated[dict[str, Any], about("A body for POST /admin/register; add the secret headers.")]
    certainty: Annotated[
        str,
        Choice(*CERTAINTIES.values()),
        about("What it rests on, from the protocol's own page to any answer."),
    ]
    reasons: list[str]
    test_payload: Annotated[Any, about("Of a first job; null if none is known that the model would take.")]


class Inspected(TypedDict):
    url: str
    proposals: Annotated[list[Proposal], about("The likeliest first.")]
    problems: Annotated[list[str], about("Pages that could not be read, and why.")]


class Observed(TypedDict):
    """How a server is: by its slots; unknown while Redis is away."""

    state: Annotated[str, Choice("on", "draining", "off", "unknown")]
    slots: dict[str, int]
    resting: int
    running: int
    circuit: _Circuits


class PlacedModel(TypedDict):
    model: Name
    endpoint: str
    paused: bool


class Server(TypedDict):
    server: Name
    pool: Name
    fleet: Name
    slots: int
    desired: Annotated[Desired, about("What the operator wants.")]
    observed: Observed
    host: str | None
    machine: Annotated[str | None, about("What it is part of, to be switched with.")]
    healthy: Annotated[bool | None, about("True: it answers and tells of no trouble. null: not asked yet.")]
    tells_health: Annotated[
        bool | None, about("False: it answers and has no health endpoint. null: not known yet.")
    ]
    checked_at: Instant | None
    last_error: str
    boot_id: str
    models: list[PlacedModel]
    live: Live


ServerPage = page_of(Server)


class Machine(TypedDict):
    machine: Name
    servers: list[Server]
    changed: Annotated[list[Name], about("Servers that were not so before.")]
    live: Live


class QuarantinedSlot(TypedDict):
    slot: Annotated[str, about("As in box-3/0.")]
    server: Name
    reason: str
    model: str
    job_id: str | None
    attempt_id: str | None
    since: Instant
    until: Annotated[Instant, about("Free at the latest: the model's run limit.")]
    probed_at: Instant | None
    tells_health: Annotated[
        bool | None,
        about("False: its server has no health endpoint, so only a restart proves it free."),
    ]


class Quarantine(TypedDict):
    results: list[QuarantinedSlot]


class SlotFreed(TypedDict):
    slot: str
    attempts: Annotated[list[str], about("That may have been busy there.")]
    live: Live


class Pause(TypedDict):
    kind: _PauseKind
    name: Annotated[str, about("Of the model or tenant; empty for the system.")]
    since: Instant
    by: str
    reason: str


class Pauses(TypedDict):
    results: list[Pause]


class Switched(TypedDict):
    kind: _PauseKind
    name: str
    paused: bool
    changed: _Changed
    live: Live


class Circuit(TypedDict):
    kind: Annotated[str, choices(CircuitKind)]
    name: Name
    pool: Name
    state: _Circuits
    failures: Annotated[int, about("In a row, while it is closed.")]
    opened: Annotated[int, about("Times in a row.")]
    left_seconds: Annotated[float, about("Until one job tries.")]


class Circuits(TypedDict):
    results: list[Circuit]
    away: Annotated[list[str], about("Pools whose Redis does not answer.")]


class CircuitReset(TypedDict):
    kind: Annotated[str, choices(CircuitKind)]
    name: Name
    changed: Annotated[bool, about("False: it was closed already.")]


class ConfigVersion(TypedDict):
    number: int
    at: Instant
    by: str
    fields: Annotated[dict[str, Any], about("As GET of the model's configuration shows them.")]


ConfigVersionPage = page_of(ConfigVersion)


class AuditEntry(TypedDict):
    id: int
    at: Instant
    actor: Annotated[str, about("key:<prefix>, user:<name> or cli:<name>")]
    action: str
    target: Annotated[str, about("kind:name, as in server:flux-1")]
    detail: dict[str, Any]


AuditPage = page_of(AuditEntry)


class GpuProcess(TypedDict):
    pid: int
    memory_mb: float | None


class DriverError(TypedDict):
    xid: int
    times: int


class Gpu(TypedDict):
    utilisation_percent: float | None
    memory_used_mb: float | None
    memory_total_mb: float | None
    temperature_celsius: float | None
    power_watts: float | None
    ecc_errors: Annotated[int | None, about("Uncorrected, since the driver was loaded.")]
    throttled: Annotated[list[str], about("Why, if it is.")]
    xids: Annotated[list[DriverError], about("The driver's errors since the worker began.")]
    processes: Annotated[list[GpuProcess], about("Who holds its memory.")]


class Sample(TypedDict):
    age_seconds: Annotated[float, about("Since it was told, by Redis' clock.")]
    measured_at: Annotated[Instant | None, about("By the worker's clock.")]
    warm_models: Annotated[list[str], about("Those loaded.")]
    cpus: int | None
    cpu_percent: float | None
    ram_used_mb: float | None
    ram_total_mb: float | None
    models_ram_mb: Annotated[float | None, about("Of the process that holds the models.")]
    gpu: Annotated[Gpu | None, about("null: none, or it can't be read.")]
    gpu_error: Annotated[str, about("Why it can't be read.")]


class Telemetry(TypedDict):
    server: Name
    machine: str | None
    seconds: int
    samples: list[Sample]
