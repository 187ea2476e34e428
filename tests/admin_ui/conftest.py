"""A filled database and people who may do different things in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client, override_settings

from admin_ui.groups import write_groups
from dispatcher_project.embedded import EmbeddedValkey
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import PoolDepth, SlotView, Wakes
from gpus.leasing.store import redis_leases
from gpus.models import (
    AuditEntry,
    ConfigVersion,
    ModelConfig,
    Pause,
    Placement,
    Pool,
    QuarantinedSlot,
    Server,
)
from gpus.protocol import PoolSpec, ServerSpec, SystemClock, TenantSpec, Ticket, split_slot
from jobs.events import announce as announcing
from jobs.ids import new_id
from jobs.models import (
    ApiKey,
    Attempt,
    Callback,
    CallbackTry,
    Event,
    IdempotencyKey,
    Job,
    JobTag,
    PurgeLedger,
    PushedResult,
    Rollup,
    SweepRun,
    Tally,
    Tenant,
)
from jobs.services import ports
from jobs.services.ports import Ports
from jobs.states import JobState
from tests.jobs.web import running_web

from .browser import CHROMIUM, SWITCHES, Desk

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
STATES = list(JobState)


@dataclass
class LeasesOnPaper:
    """Notes what it is told; `away` plays a dead Redis."""

    pools: list[PoolSpec] = field(default_factory=list)
    servers: list[ServerSpec] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    tenants: dict[str, TenantSpec] = field(default_factory=dict)
    views: list[SlotView] = field(default_factory=list)
    depths: dict[str, PoolDepth] = field(default_factory=dict)
    away: bool = False

    def configure_pool(self, pool: PoolSpec) -> None:
        self._answer()
        self.pools.append(pool)

    def configure_server(self, server: ServerSpec) -> tuple[Wakes, ...]:
        self._answer()
        self.servers.append(server)
        return (Wakes(server.pool, None, 1),)

    def forget_server(self, server: str) -> None:
        self._answer()
        self.forgotten.append(server)

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        self._answer()
        self.tenants.update({tenant.name: tenant for tenant in tenants})
        return ()

    def set_paused_tenants(self, pool: str, tenants: Sequence[str]) -> tuple[Wakes, ...]:
        self._answer()
        return ()

    def fill(self) -> tuple[Wakes, ...]:
        self._answer()
        return ()

    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        self._answer()
        return [view for view in self.views if split_slot(view.slot)[0] in servers]

    def depth(self, pool: str) -> PoolDepth:
        self._answer()
        return self.depths.get(pool) or PoolDepth(pool, {}, 0, {})

    def estimate_seconds(self, model: str, tenant: str) -> float:
        self._answer()
        return 6.0

    def remove(self, pool: str, ticket: Ticket) -> bool:
        self._answer()
        return True

    def has_tickets(self, pool: str, tickets: Sequence[Ticket]) -> list[bool]:
        self._answer()
        return [False] * len(tickets)

    def push(self, pool: str, tickets: Sequence[Ticket]) -> Any:
        raise LeasingUnavailable

    def _answer(self) -> None:
        if self.away:
            raise LeasingUnavailable


@dataclass
class World:
    leases: LeasesOnPaper = field(default_factory=LeasesOnPaper)
    wakes: list[Wakes] = field(default_factory=list)
    callbacks_woken: list[str] = field(default_factory=list)

    def ports(self) -> Ports:
        def send(wakes: Sequence[Wakes]) -> int:
            self.wakes.extend(wakes)
            return len(wakes)

        return Ports(
            clock=SystemClock(),
            leases=lambda fleet: self.leases,  # type: ignore[arg-type,return-value]
            send_wakes=send,
            wake_callbacks=self.callbacks_woken.extend,
            announce=lambda ids: None,
            after=lambda seconds, work: None,
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(ports, "production_ports", world.ports)
    return world


@pytest.fixture(scope="module")
def desk(django_db_setup: None, valkey: EmbeddedValkey) -> Iterator[Desk]:
    """One chromium and one web process for all tests of a module, on a real Redis: lease layers of any fleet
    are there, and announcements are heard. Such tests need `transactional_db` too."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    real = replace(
        World().ports(), leases=lambda name: redis_leases(valkey.url, name), announce=announcing.announce
    )
    with override_settings(REDIS_URL=valkey.url), pytest.MonkeyPatch.context() as patch:
        # playwright runs an event loop in this thread, and Django takes that for asynchronous code
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        patch.setattr(ports, "production_ports", lambda: real)
        patch.setattr(announcing, "_resting_until", 0.0)
        with running_web() as web, playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
            yield Desk(browser, web.url)
            browser.close()


@pytest.fixture
def boss(db: None) -> Client:
    return _client(User.objects.create_superuser("boss", password="correct horse"))


@pytest.fixture
def operator(db: None) -> Client:
    return _member("operators")


@pytest.fixture
def viewer(db: None) -> Client:
    return _member("viewers")


@pytest.fixture
def filled(db: None) -> None:
    fill(jobs=300)


def fill(*, jobs: int) -> None:
    """One row at least of everything; of jobs, attempts, events and callbacks as many as asked for."""
    tenants = [Tenant.objects.create(name=name) for name in ("acme", "globex", "initech")]
    for tenant in tenants:
        ApiKey.objects.create_key(tenant=tenant, name=f"{tenant.name} key")
    for number, name in enumerate(("zimg", "flux", "trellis", "ltx2")):
        pool = Pool.objects.create(name=name)
        config = ModelConfig.objects.create(name=name, pool=pool)
        for index in (1, 2):
            server = Server.objects.create(
                name=f"{name}-server-{index}", pool=pool, slots=2, healthy=index == 1, checked_at=NOW
            )
            Placement.objects.create(
                server=server, model=config, endpoint=f"http://10.0.{number}.{index}/generate"
            )
    QuarantinedSlot.objects.create(
        server=server, slot=1, reason="timeout", since=NOW, until=NOW + timedelta(hours=1), job_id=new_id()
    )
    rows = [_job(number, tenants[number % 3]) for number in range(jobs)]
    Job.objects.bulk_create(rows)
    done = [row for row in rows if row.state in (JobState.COMPLETED, JobState.FAILED)]
    Attempt.objects.bulk_create(
        Attempt(
            id=new_id(),
            job=row,
            number=number,
            state="completed" if row.state == JobState.COMPLETED and number == 3 else "failed",
            server=f"{row.model}-server-1",
            slot=0,
            model=row.model,
            error_code="" if row.state == JobState.COMPLETED and number == 3 else "timeout",
            started_at=NOW,
            finished_at=NOW + timedelta(seconds=21),
        )
        for row in done
        for number in (1, 2, 3)
    )
    Event.objects.bulk_create(
        Event(job=row, seq=seq, type=event, at=NOW, data={"n": seq})
        for row in rows
        for seq, event in ((1, "submitted"), (2, "started"))
    )
    callbacks = [
        Callback(
            id=f"msg_{new_id()}",
            job=row,
            url="https://hooks.example.com/gpu",
            body=f'{{"job_id":"{row.id}"}}',
            state="gave_up",
            tries=10,
            created_at=NOW,
        )
        for row in done
    ]
    Callback.objects.bulk_create(callbacks)
    CallbackTry.objects.bulk_create(
        CallbackTry(callback=row, number=1, at=NOW, status_code=500, error="HTTP 500") for row in callbacks
    )
    JobTag.objects.bulk_create(JobTag(job=row, tag="night") for row in rows[:50])
    IdempotencyKey.objects.create(tenant=tenants[0], key="order-7", fingerprint="f" * 64, job=rows[0])
    PushedResult.objects.create(
        attempt_id=new_id(), job_id=rows[0].id, body={"status": "success"}, received_at=NOW
    )
    Tally.objects.create(name="zombie_results", count=3)
    Rollup.objects.create(span_seconds=60, at=NOW, model="zimg", tenant=tenants[0], completed=3)
    SweepRun.objects.create(name="expired_leases", at=NOW)
    ConfigVersion.objects.create(
        model=config, number=1, at=NOW, actor="user:boss", fields={"max_retries": 50}
    )
    AuditEntry.objects.create(at=NOW, actor="user:boss", action="cancel_job", target="job:x", detail={"n": 1})
    Pause.objects.create(kind="model", name="retired", since=NOW, actor="user:boss")
    PurgeLedger.objects.create(tenant=tenants[0], state="completed", count=7)


def _job(number: int, tenant: Tenant) -> Job:
    state = STATES[number % len(STATES)]
    over = state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
    failed = state == JobState.FAILED
    created = NOW + timedelta(seconds=number)
    return Job(
        id=new_id(created.timestamp()),
        tenant=tenant,
        model=("zimg", "flux", "trellis", "ltx2")[number % 4],
        pool=("zimg", "flux", "trellis", "ltx2")[number % 4],
        payload={"prompt": f"a sunset <b>{number}</b>", "steps": 30},
        tags=["night"],
        metadata={"order": number},
        callback_url="https://hooks.example.com/gpu",
        state=state,
        error_code="timeout" if failed else "",
        error_message="The run took longer than its model allows." if failed else "",
        result={"url": "s3://image.png"} if state == JobState.COMPLETED else None,
        live_attempt=new_id() if state == JobState.RUNNING else None,
        place_us=number,
        created_at=created,
        started_at=created + timedelta(seconds=3) if over else None,
        finished_at=created + timedelta(seconds=24) if over else None,
        due_at=NOW if state == JobState.RETRYING else None,
        attempts_made=3 if over else 0,
        event_seq=2,
    )


def _member(group: str) -> Client:
    write_groups()
    user = User.objects.create_user(group, password="correct horse", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    return _client(user)


def _client(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
