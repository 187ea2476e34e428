"""Types of the API's answers about servers, models and operator controls."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from foundation.http_api.json_body import Choice, Name, about, choices
from foundation.http_api.openapi import Instant
from gpus.api.bodies import Desired, options
from gpus.health.health import ELSEWHERE, NO_HEALTH, UNHEALTHY, UNREACHABLE
from gpus.models import Pause as PauseRow
from gpus.protocol import CircuitKind, CircuitState
from gpus.registry.recognise import CERTAINTIES

Live = Annotated[bool, about("False: Redis does not answer; the change is applied when it is back.")]
_Changed = Annotated[bool, about("False: it had no effect.")]
_PauseKind = Annotated[str, choices(PauseRow.Kind)]
_Circuits = Annotated[str, choices(CircuitState)]
_Next = Annotated[str | None, about("URL of the following page.")]


def page_of(row: type[Any]) -> Any:
    """The type of one page of a list with a cursor."""
    fields = {"next": _Next, "previous": str | None, "results": list[row]}  # type: ignore[valid-type]
    return TypedDict(f"{row.__name__.removesuffix('Entry').removesuffix('Summary')}Page", fields)  # type: ignore[operator]


ModelConfig = TypedDict("ModelConfig", {"model": Name, "pool": Name, "fleet": Name, **options()})  # type: ignore[misc]
ModelConfig.__doc__ = "The configuration of a model."


class ModelConfigs(TypedDict):
    results: list[ModelConfig]


class Warning(TypedDict):
    """A warning for the operator who registers a server."""

    code: Annotated[str, Choice(NO_HEALTH, UNREACHABLE, UNHEALTHY, ELSEWHERE)]
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
        about("Basis of the proposal, from the protocol's own page to any HTTP answer."),
    ]
    reasons: list[str]
    test_payload: Annotated[Any, about("Of a first job; null if none is known that the model would take.")]


class Inspected(TypedDict):
    url: str
    proposals: Annotated[list[Proposal], about("The likeliest first.")]
    problems: Annotated[list[str], about("Pages that could not be read, and why.")]


class Observed(TypedDict):
    """The actual state of a server, by its slots; unknown while Redis does not answer."""

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
    desired: Annotated[Desired, about("The state that the operator has set.")]
    observed: Observed
    host: str | None
    machine: Annotated[str | None, about("Group of servers that are switched together.")]
    healthy: Annotated[bool | None, about("True: it answers and reports no fault. null: not probed yet.")]
    tells_health: Annotated[
        bool | None, about("False: it answers, but has no health endpoint. null: not known yet.")
    ]
    checked_at: Instant | None
    last_error: str
    boot_id: str
    models: list[PlacedModel]
    upload_url: Annotated[
        str | None,
        about(
            "The address to which the server uploads the files of its outputs, with a key: `--upload-url` "
            "of a Cog container. null: its models' runner takes no uploads."
        ),
    ]
    live: Live


ServerPage = page_of(Server)


class Machine(TypedDict):
    machine: Name
    servers: list[Server]
    changed: Annotated[list[Name], about("Servers whose state changed.")]
    live: Live


class QuarantinedSlot(TypedDict):
    slot: Annotated[str, about("Such as box-3/0.")]
    server: Name
    reason: str
    model: str
    job_id: str | None
    attempt_id: str | None
    since: Instant
    until: Annotated[Instant, about("Free at the latest, by the model's run limit.")]
    probed_at: Instant | None
    tells_health: Annotated[
        bool | None,
        about("False: its server has no health endpoint, so only a restart proves the slot free."),
    ]


class Quarantine(TypedDict):
    results: list[QuarantinedSlot]


class SlotFreed(TypedDict):
    slot: str
    attempts: Annotated[list[str], about("Attempts that may have been running there.")]
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
    failures: Annotated[int, about("Failures in a row, while closed.")]
    opened: Annotated[int, about("How often it opened in a row.")]
    left_seconds: Annotated[float, about("Until it is half open: one job is sent as a trial.")]


class Circuits(TypedDict):
    results: list[Circuit]
    away: Annotated[list[str], about("Pools whose Redis does not answer.")]


class CircuitReset(TypedDict):
    kind: Annotated[str, choices(CircuitKind)]
    name: Name
    changed: Annotated[bool, about("False: it was closed, without failures.")]


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
    target: Annotated[str, about("kind:name, such as server:flux-1")]
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
    throttled: Annotated[list[str], about("Reasons, if it is throttled.")]
    xids: Annotated[list[DriverError], about("The driver's errors since the worker started.")]
    processes: Annotated[list[GpuProcess], about("Processes that use its memory.")]


class Sample(TypedDict):
    age_seconds: Annotated[float, about("Age by Redis' clock.")]
    measured_at: Annotated[Instant | None, about("By the worker's clock.")]
    warm_models: Annotated[list[str], about("Loaded models.")]
    cpus: int | None
    cpu_percent: float | None
    ram_used_mb: float | None
    ram_total_mb: float | None
    models_ram_mb: Annotated[float | None, about("Memory of the process that holds the models.")]
    gpu: Annotated[Gpu | None, about("null: there is none, or it cannot be read.")]
    gpu_error: Annotated[str, about("Why the GPU cannot be read.")]


class Spread(TypedDict):
    """A measure in five minutes."""

    mean: float
    lowest: float
    highest: float


class Loads(TypedDict):
    model: Name
    times: int


class TelemetrySummary(TypedDict):
    """Five minutes of telemetry. A measure is null if no reading had it."""

    age_seconds: Annotated[float, about("Since the five minutes began, by Redis' clock.")]
    readings: Annotated[int, about("Their number; 60 if the worker was never silent.")]
    utilisation_percent: Spread | None
    memory_used_mb: Spread | None
    memory_total_mb: Spread | None
    temperature_celsius: Spread | None
    power_watts: Spread | None
    cpu_percent: Spread | None
    ram_used_mb: Spread | None
    ram_total_mb: Spread | None
    loads: Annotated[list[Loads], about("Models that were loaded.")]


class Telemetry(TypedDict):
    server: Name
    machine: str | None
    seconds: int
    samples: Annotated[list[Sample], about("Reading by reading; empty for `window=day`.")]
    summaries: Annotated[list[TelemetrySummary], about("For `window=day`, else empty.")]
