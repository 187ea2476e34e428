"""The API behind a test client: ports without Redis, and accounts with keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from rest_framework.test import APIClient

from artifacts.store.configured import ProcessStore
from artifacts.uploads import Completions
from foundation.ttl_cache import TtlCache
from gpus.errors import ConnectFailed
from gpus.leasing.values import Wakes
from gpus.models import ModelConfig, Pool
from gpus.protocol import Clock, SystemClock
from gpus.registry.queries import RegistryCache
from gpus.runners.base import Response, Transport
from jobs import ports
from jobs.domain.access import Principal
from jobs.models import ApiKey, Tenant
from jobs.operations.tenants import create_key
from jobs.ports import LimitCaches, Ports, Readiness, RedisRest, tenant_changes
from jobs.reports.counters import BufferedCounts, Name
from tests.declared_answers import compare_answers
from tests.support.fake_leases import FakeLeases


class Unreachable:
    """A transport without GPU servers."""

    def request(self, method: str, url: str, **_: Any) -> Response:
        raise ConnectFailed(f"{url}: no server there")


@dataclass
class ApiHarness:
    """Test ports that record their calls."""

    leases: FakeLeases = field(default_factory=FakeLeases)
    wakes: list[Wakes] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    clock: Clock = field(default_factory=SystemClock)
    transport: Transport = field(default_factory=Unreachable)
    redis_rest: RedisRest = field(default_factory=RedisRest)
    request_refusals: BufferedCounts = field(default_factory=lambda: BufferedCounts(Name.REQUESTS_REFUSED))
    readiness: Readiness = field(default_factory=Readiness)
    artifact_completions: Completions = field(default_factory=Completions)
    process_store: ProcessStore = field(default_factory=ProcessStore)
    push_refusals: BufferedCounts = field(default_factory=lambda: BufferedCounts(Name.PUSHES_REFUSED))
    registry: RegistryCache = field(default_factory=RegistryCache)
    valid_keys: TtlCache[bytes, Principal] = field(
        default_factory=lambda: TtlCache(ports.KEEP_KEY_SECONDS, max_entries=1000)
    )
    limit_caches: LimitCaches = field(
        default_factory=lambda: LimitCaches(
            limits=TtlCache(3600.0, max_entries=1000, changes=tenant_changes()),
            used_seconds=TtlCache(0.0, max_entries=1000),
        )
    )

    def send_wakes(self, wakes: Sequence[Wakes]) -> int:
        self.wakes += wakes
        return len(wakes)

    @property
    def ports(self) -> Ports:
        return Ports(
            clock=self.clock,
            leases=lambda fleet: self.leases,  # type: ignore[arg-type, return-value]
            send_wakes=self.send_wakes,
            wake_callbacks=lambda ids: None,
            announce=self.announced.extend,
            after=lambda seconds, work: None,
            transport=self.transport,
            redis_rest=self.redis_rest,
            push_refusals=self.push_refusals,
            request_refusals=self.request_refusals,
            readiness=self.readiness,
            artifact_completions=self.artifact_completions,
            process_store=self.process_store,
            limit_caches=self.limit_caches,
            registry=self.registry,
            valid_keys=self.valid_keys,
        )


@dataclass
class Account:
    tenant: Tenant
    key: str
    client: APIClient


@pytest.fixture(autouse=True)
def api(monkeypatch: pytest.MonkeyPatch) -> ApiHarness:
    compare_answers(monkeypatch)
    api = ApiHarness()
    monkeypatch.setattr(ports, "production_ports", lambda: api.ports)
    return api


@pytest.fixture
def all_remembered(api: ApiHarness) -> None:
    """What the test has read it need not read again, however slow the machine is."""
    api.registry = RegistryCache(3600.0)
    api.valid_keys = TtlCache(3600.0, max_entries=1000)


def forget_keys() -> None:
    """Drop the caches, as if 2 s had passed."""
    ports.production_ports().valid_keys.clear()


def account(name: str, kind: ApiKey.Kind = ApiKey.Kind.TENANT) -> Account:
    tenant, _ = Tenant.objects.get_or_create(name=name)
    _, key = create_key(tenant, kind)
    return Account(tenant, key, key_client(key))


def with_key(account: Account, key: str) -> Account:
    """Return the account with another key of its tenant."""
    return replace(account, key=key, client=key_client(key))


def key_client(key: str) -> APIClient:
    """Return a test client that sends the key with each request."""
    client = APIClient(raise_request_exception=False)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {key}")
    return client


@pytest.fixture
def acme(db: None) -> Account:
    return account("acme")


@pytest.fixture
def other(db: None) -> Account:
    return account("other")


@pytest.fixture
def operator(db: None) -> Account:
    return account("ops", ApiKey.Kind.OPERATOR)


@pytest.fixture
def zimg(db: None) -> ModelConfig:
    return make_model("zimg")


def make_model(name: str, **fields: Any) -> ModelConfig:
    pool, _ = Pool.objects.get_or_create(name=name)
    return ModelConfig.objects.create(name=name, pool=pool, **fields)


class GatewayClock:
    """Clock for `dispatcher_project.web.request_limits`, advanced only by the test."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def move(self, seconds: float) -> None:
        self._now += seconds
