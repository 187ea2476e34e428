"""Reads the database and the leases of the dispatcher on trial. Needs Django set up for it (trial.py).

A value that can't be read now, because of a fault, is None: a later read may succeed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db import DatabaseError, connection, connections
from django.db.models import Count
from redis.exceptions import RedisError

from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import only_ref
from artifacts.removal import (
    TOMBSTONE_TIME,
    UNKNOWN_TIME,
    announce_unused,
    remove_announced,
    remove_unknown,
)
from artifacts.store.contract import Store, StoredObject
from gpus.errors import LeasingUnavailable
from gpus.leasing.store import RedisFleets
from gpus.leasing.values import SlotView
from gpus.protocol import DesiredState, SystemClock, Ticket
from gpus.registry.audit import cli_actor
from gpus.registry.controls import switch_server
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import remove_server
from jobs.domain.states import FINAL_JOB_STATES, JobState
from jobs.models import ApiKey, Attempt, Callback, Job, SweepRun
from jobs.operations.erase import is_erased
from jobs.operations.tenants import create_key, create_tenant
from jobs.ports import Ports
from verification.laws import check_laws
from verification.proving.artifact_records import ArtifactRow, StoredArtifacts
from verification.proving.judge import DEADLINE_CODES
from verification.proving.records import AttemptRow, JobRow
from verification.proving.run_records import OVER as FINISHED
from verification.proving.run_records import RunRow
from verification.proving.schedule_mix import DUE, MARK
from verification.proving.schedule_records import Firing as FiringRow
from verification.proving.schedule_records import ScheduledJob, StoredFirings
from verification.schedule_laws import check_schedules
from workflows.models import Run, RunEvent
from workflows.schedules.models import Firing

FLEET = "main"
_FINAL = sorted(state.value for state in FINAL_JOB_STATES)
_PAGE = 500
_LOOKED_AT = 200


@dataclass(frozen=True, slots=True)
class Live:
    """A live attempt. worker: its name, ``host:pid:…``. polled: its remote id is stored."""

    job_id: str
    attempt_id: str
    number: int
    epoch: int
    worker: str
    server: str
    slot: str
    model: str
    polled: bool


@dataclass(slots=True)
class State:
    """The stores of the dispatcher on trial. tenants: ids of the trial's own."""

    redis_url: str
    tenants: dict[str, int] = field(default_factory=dict)
    pinned: str = ""
    """The pinned server of the trial: no fault is measured by its runs."""
    _leases: RedisFleets = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._leases = RedisFleets(self.redis_url)

    def use_database_port(self, port: int) -> None:
        """Use this port for every thread's next connection."""
        connections.settings["default"]["PORT"] = port
        connection.close()

    def make_tenants(self, names: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Create tenants; return keys and webhook secrets by name."""
        keys, secrets = {}, {}
        for index, name in enumerate(names):
            tenant, secrets[name] = create_tenant(name, weight=1.0 + index, highest_band="urgent")
            _, keys[name] = create_key(tenant, ApiKey.Kind.TENANT)
            self.tenants[name] = tenant.pk
        return keys, secrets

    def ports(self) -> Ports:
        """A reader must wake no process."""
        return Ports(
            clock=SystemClock(),
            leases=self._leases,
            send_wakes=lambda wakes: 0,
            wake_callbacks=lambda ids: None,
            announce=lambda ids: None,
        )

    def broken_laws(self, *, drained: bool = False, **more: Any) -> list[str] | None:
        """Return violations of the laws; None if the stores can't be read."""
        with _unless_away():
            return check_laws(drained=drained, ports=self.ports(), **more)
        return None

    def broken_schedule_laws(self) -> list[str]:
        """Return violations of the laws of the trial's schedules, which have ended."""
        return list(check_schedules(self.tenants.values()))

    # -- now -----------------------------------------------------------------------------------------------

    def live(self) -> list[Live] | None:
        """Return all live attempts."""
        fields = ("job_id", "id", "number", "epoch", "worker", "server", "slot", "model", "state")
        with _unless_away():
            live = Attempt.objects.filter(state__in=Attempt.LIVE).exclude(server=self.pinned)
            rows = live.values_list(*fields)
            return [
                Live(
                    job, attempt, number, epoch, worker, server, f"{server}/{slot}", model, state == "waiting"
                )
                for job, attempt, number, epoch, worker, server, slot, model, state in rows
            ]
        return None

    def counts(self) -> dict[str, int] | None:
        """Return the trial's jobs by state."""
        with _unless_away():
            jobs = Job.objects.filter(tenant__in=self.tenants.values()).order_by()
            return dict(jobs.values_list("state").annotate(Count("id")))
        return None

    def unfinished(self, *, but: bool = False) -> int | None:
        """Return the number of the trial's unfinished jobs; but: of all others."""
        with _unless_away():
            jobs = Job.objects.exclude(state__in=_FINAL)
            ours = {"tenant__in": list(self.tenants.values())}
            return jobs.exclude(**ours).count() if but else jobs.filter(**ours).count()
        return None

    def live_runs(self) -> int | None:
        """Return the number of the trial's unfinished runs of workflows."""
        with _unless_away():
            return Run.objects.filter(tenant__in=self.tenants.values(), finished_at=None).count()
        return None

    def advanced_since(self, at: float) -> bool:
        """Return True if a run advanced since then (Unix seconds), or none is unfinished."""
        with _unless_away():
            since = datetime.fromtimestamp(at, UTC)
            return not self.live_runs() or RunEvent.objects.filter(at__gte=since).exists()
        return False

    def runs(self) -> dict[str, RunRow]:
        """Return the trial's runs of workflows by id."""
        ours = self.tenants.values()
        ends: dict[str, list[str]] = {}
        events = RunEvent.objects.filter(run__tenant__in=ours, type__in=FINISHED).order_by("run_id", "seq")
        for run_id, state in events.values_list("run_id", "type"):
            ends.setdefault(run_id, []).append(state)
        tries: dict[str, dict[int, int]] = {}
        callbacks = Callback.objects.filter(tenant__in=ours, subject__startswith="run:")
        for subject, number, count in callbacks.values_list("subject", "round", "tries"):
            tries.setdefault(str(subject).removeprefix("run:"), {})[number] = count
        return {
            run_id: RunRow(
                run_id,
                state,
                code,
                None if at is None else at.timestamp(),
                ends.get(run_id, ()),
                tries.get(run_id, {}),
                nodes,
                erased_at is not None,
            )
            for run_id, state, code, at, nodes, erased_at in Run.objects.filter(tenant__in=ours).values_list(
                "id", "state", "error_code", "finished_at", "node_states", "erase_requested_at"
            )
        }

    def waiting(self, pool: str | None = None) -> int | None:
        """Return the number of waiting jobs, of all pools or one."""
        with _unless_away():
            jobs = Job.objects.filter(state=JobState.QUEUED.value)
            return (jobs if pool is None else jobs.filter(pool=pool)).count()
        return None

    def slot_views(self, servers: Collection[str]) -> dict[str, SlotView] | None:
        """Return the slots of these servers by name."""
        try:
            leases = self._leases(FLEET)
            return {view.slot: view for server in servers for view in leases.slots(server)}
        except (LeasingUnavailable, RedisError):
            return None

    def attempts_of(self, jobs: Collection[str]) -> dict[str, tuple[str, list[AttemptRow]]] | None:
        """Return (state, attempts) by job."""
        with _unless_away():
            states = dict(Job.objects.filter(id__in=jobs).values_list("id", "state"))
            found = _attempts(jobs)
            return {job: (state, found.get(job, [])) for job, state in states.items()}
        return None

    def queued(self, jobs: Collection[str]) -> dict[str, str] | None:
        """Return the pools of the jobs that wait and have their ticket."""
        try:
            with _unless_away():
                waiting = Job.objects.filter(id__in=jobs, state=JobState.QUEUED.value)
                found: dict[str, str] = {}
                for job in waiting.defer("payload", "result"):
                    leases = self._leases(FLEET)
                    if leases.has_tickets(job.pool, [job.ticket])[0]:
                        found[job.id] = job.pool
                return found
        except (LeasingUnavailable, RedisError):
            pass
        return None

    def tickets(self, pools: Collection[str]) -> int:
        """Return the number of jobs with a ticket; 0 while Redis does not answer."""
        try:
            leases = self._leases(FLEET)
            return sum(sum(leases.depth(pool).waiting.values()) for pool in pools)
        except (LeasingUnavailable, RedisError):
            return 0

    def all_queued(self) -> bool:
        """Return True if the jobs that have waited longest have their tickets."""
        oldest = Job.objects.filter(state=JobState.QUEUED.value).order_by("place_us")
        lines: dict[str, list[Ticket]] = {}
        try:
            with _unless_away():
                for job in oldest.defer("payload", "result")[:_LOOKED_AT]:
                    lines.setdefault(job.pool, []).append(job.ticket)
                leases = self._leases(FLEET)
                return all(all(leases.has_tickets(pool, tickets)) for pool, tickets in lines.items())
        except (LeasingUnavailable, RedisError):
            pass
        return False

    def last_tick(self) -> float:
        """Return when a sweep last ended, Unix seconds; written every five seconds at most."""
        with _unless_away():
            at = SweepRun.objects.order_by("-at").values_list("at", flat=True).first()
            return at.timestamp() if at else 0.0
        return 0.0

    def failed_by_deadline(self) -> list[str]:
        """Return the jobs that failed by their deadline."""
        with _unless_away():
            jobs = Job.objects.filter(state=JobState.FAILED.value, error_code__in=DEADLINE_CODES)
            return list(jobs.values_list("id", flat=True))
        return []

    def ended_with_files(self, before: float) -> bool:
        """Return True if no job that uses an artifact and was accepted before then (Unix seconds) is
        unfinished."""
        with _unless_away():
            jobs = Job.objects.filter(created_at__lt=datetime.fromtimestamp(before, UTC))
            unfinished = jobs.exclude(state__in=_FINAL).values_list("id", flat=True)
            return not ArtifactUse.objects.filter(job__in=list(unfinished[:_PAGE])).exists()
        return False

    def pending_callbacks(self) -> tuple[int, float] | None:
        """Return the number of undelivered callbacks, and when the last one is due (Unix seconds)."""
        with _unless_away():
            pending = Callback.objects.filter(
                state=Callback.State.PENDING, tenant__in=self.tenants.values()
            ).values_list("next_at", flat=True)
            return len(pending), max((at.timestamp() for at in pending if at), default=0.0)
        return None

    def remove_servers(self, names: Collection[str]) -> None:
        """Unregister servers from a dispatcher that is not the trial's own; only switch them off if a slot is
        in quarantine."""
        with _unless_away():
            for name in names:
                try:
                    remove_server(name, by=cli_actor(), leases=self.ports().leases)
                except RegistryRefused:
                    switch_server(name, DesiredState.OFF, by=cli_actor(), leases=self.ports().leases)

    # -- at the end ----------------------------------------------------------------------------------------

    def rows(self) -> Iterator[JobRow]:
        """Yield all jobs of the trial."""
        names = {pk: name for name, pk in self.tenants.items()}
        schedules = dict(
            Firing.objects.filter(schedule__tenant__in=self.tenants.values())
            .exclude(job_id=None)
            .values_list("job_id", "schedule__name")
        )
        fields = (
            "id",
            "tenant_id",
            "model",
            "priority",
            "place_us",
            "state",
            "error_code",
            "round",
            "result",
            "followed_by",
        )
        last = ""
        while True:
            jobs = Job.objects.filter(tenant__in=self.tenants.values(), id__gt=last).order_by("id")
            page = list(jobs.values(*fields)[:_PAGE])
            if not page:
                return
            last = page[-1]["id"]
            attempts = _attempts([job["id"] for job in page])
            for job in page:
                stored = job.pop("result")
                result = {} if is_erased(stored) else self._result(stored)
                named, output = result.get("attempt"), result.get("output")
                tenant = names[job.pop("tenant_id")]
                run = (job.pop("followed_by") or "").removeprefix("run:")
                made = tuple(attempts.get(job["id"], ()))
                schedule = schedules.get(job["id"], "")
                yield JobRow(
                    **job,
                    tenant=tenant,
                    result_attempt=named if isinstance(named, str) else None,
                    attempts=made,
                    run=run,
                    schedule=schedule,
                    output=only_ref(output) or "",
                    output_sha256=result.get("output_sha256", ""),
                    is_erased=is_erased(stored),
                )

    def firings(self) -> StoredFirings:
        """Return the records of the trial's schedules."""
        ours = self.tenants.values()
        firings = Firing.objects.filter(schedule__tenant__in=ours).select_related("schedule")
        jobs = Job.objects.filter(tenant__in=ours, payload__has_key=MARK)
        return StoredFirings(
            [
                FiringRow(
                    one.schedule.name,
                    one.due_at.timestamp(),
                    (one.until_at or one.due_at).timestamp(),
                    one.count,
                    one.outcome,
                    one.reason,
                    one.at.timestamp(),
                    one.job_id or "",
                    one.run_id or "",
                    one.end_state,
                    None if one.ended_at is None else one.ended_at.timestamp(),
                )
                for one in firings
            ],
            [
                ScheduledJob(job_id, payload[MARK], datetime.fromisoformat(payload[DUE]).timestamp())
                for job_id, payload in jobs.values_list("id", "payload")
            ],
            set(self.runs()),
        )

    def _result(self, result: Any) -> dict[str, Any]:
        """Return a result that is an object, also one that became an artifact; else an empty one."""
        if (artifact_id := only_ref(result)) is not None:
            row = Artifact.objects.get(pk=artifact_id)
            result = json.loads(b"".join(self.ports().artifact_store.chunks(row.key)))
        return result if isinstance(result, dict) else {}

    def collect_garbage(self) -> None:
        """Remove from the store what the sweeps would remove within two days: abandoned uploads and objects
        that no row names. Raises StoreError."""
        ports = self.ports()
        store, later = ports.artifact_store, ports.clock.now() + 2 * UNKNOWN_TIME
        most = Artifact.objects.count()
        announce_unused(later, most)
        remove_announced(store, later + 2 * TOMBSTONE_TIME, most)
        remove_unknown(list(store.objects()), store, later)
        store.drop_unfinished(later)

    def artifacts(self) -> StoredArtifacts:
        """Return the records of artifacts. Raises StoreError."""
        store = self.ports().artifact_store
        rows = {
            row.pk: ArtifactRow(row.pk, str(row.key), row.state, row.sha256, row.bytes)
            for row in Artifact.objects.all()
        }
        uses = set(ArtifactUse.objects.values_list("job", "artifact_id"))
        objects = {str(one.key): one.bytes for one in store.objects()}
        damaged = [str(one.key) for one in store.objects() if one.bytes and not _is_whole(store, one)]
        return StoredArtifacts(rows, uses, objects, damaged)

    def close(self) -> None:
        connection.close()


def _attempts(jobs: Collection[str]) -> dict[str, list[AttemptRow]]:
    fields = ("id", "number", "round", "state", "epoch", "server", "slot", "remote_id", "error_code")
    found: dict[str, list[AttemptRow]] = {}
    rows = Attempt.objects.filter(job_id__in=jobs).order_by("job_id", "number")
    for job, started_at, *values in rows.values_list("job_id", "started_at", *fields):
        named = dict(zip(fields, values, strict=True))
        remote = bool(named.pop("remote_id"))
        row = AttemptRow(**named, has_remote_id=remote, started_at=started_at.timestamp())
        found.setdefault(job, []).append(row)
    return found


def _is_whole(store: Store, one: StoredObject) -> bool:
    digest = hashlib.sha256()
    for chunk in store.chunks(one.key):
        digest.update(chunk)
    return digest.hexdigest() == one.key.sha256


class _unless_away:
    """Swallow errors of an unreachable database; reconnect next time."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is not None and issubclass(kind, DatabaseError):
            connection.close()
            return True
        return False
