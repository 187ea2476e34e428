"""One tenant's requests use a limited share of a web process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import requests
from django.db import connection
from django.urls import resolve

import jobs.ports
from dispatcher_project import asgi
from dispatcher_project.web.protocol import GONE_KEY
from dispatcher_project.web.request_limits import (
    BATCH,
    LIGHT_BYTES,
    LISTS,
    SMALL_BATCH_BYTES,
    ClientGone,
    FairThreads,
    InFlight,
    TooManyInFlight,
    holder_of,
)
from dispatcher_project.wiring import make_gateway
from foundation.http_api.json_body import BODY_PENDING_KEY
from jobs.api import authentication
from jobs.api.errors import count_refusal, unknown_route
from jobs.reports import counters
from tests.support.announced_jobs import new_job
from tests.support.api_harness import Account, forget_keys
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.web import Web
from tests.support.waiting import wait_for

__all__ = ["redis_url", "tenant", "web"]
SUBMIT = "/api/v1/queue/submit"


def scope_of(
    authorization: str = "", client: str = "10.0.0.1", length: int = 0, path: str = SUBMIT
) -> dict[str, Any]:
    headers = [(b"authorization", authorization.encode()), (b"content-length", str(length).encode())]
    return {"headers": headers, "client": (client, 1234), "path": path}


def heavy(client: str) -> dict[str, Any]:
    return scope_of(client=client, length=LIGHT_BYTES + 1)


def test_a_request_counts_for_the_tenant_of_a_cached_key_else_for_its_address(acme: Account) -> None:
    forget_keys()
    bearer = f"Bearer {acme.key}"
    assert holder_of(scope_of(bearer)) == "address 10.0.0.1", "any client can send another key's prefix"
    assert authentication.principal_of_header(bearer, jobs.ports.production_ports()) is not None
    assert holder_of(scope_of(bearer)) == f"tenant {acme.tenant.pk}"
    assert holder_of(scope_of(bearer[:-1] + "x")) == "address 10.0.0.1"
    assert holder_of({"headers": [], "client": None}) == "address "
    of_one_network = {holder_of({"headers": [], "client": (f"2001:db8::{one}", 1)}) for one in range(9)}
    assert of_one_network == {"address 2001:db8::/64"}, "one customer has all of these addresses"


def test_requests_in_flight_are_limited_per_tenant_or_address() -> None:
    bytes_held = InFlight("bytes of requests", 100)
    with bytes_held.of("a", 60):
        with pytest.raises(TooManyInFlight, match="100 bytes") as refused, bytes_held.of("a", 41):
            pass
        assert (refused.value.status, refused.value.retry_after_seconds) == (429, 1)
        with bytes_held.of("a", 40), bytes_held.of("b", 100), bytes_held.of("a", 0):
            pass
    with bytes_held.of("a", 1000):
        pass
    assert not bytes_held._held


class Site:
    """A site that blocks requests until released and counts concurrent ones."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.running: list[str] = []
        self.most: dict[str, int] = {}
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        holder = holder_of(scope)
        self.began.append(holder)
        self.running.append(holder)
        self.most[holder] = max(self.most.get(holder, 0), self.running.count(holder))
        await self.go_on.wait()
        self.running.remove(holder)


async def nothing(*_: Any) -> Any: ...


def play(scopes: list[dict[str, Any]], at_once: int, there: int, heavy_at_once: int = 1) -> Site:
    """Wait until `there` requests run concurrently and no more are started, then release all."""

    async def run() -> Site:
        site = Site()
        threads = FairThreads(site, at_once, heavy_at_once)
        tasks = [asyncio.create_task(threads(scope, nothing, nothing)) for scope in scopes]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(site.running) == there
        site.go_on.set()
        await asyncio.gather(*tasks)
        assert not threads._turns, "tenants without a request are removed"
        return site

    return asyncio.run(run())


def test_each_tenant_or_address_has_its_own_threads() -> None:
    site = play([scope_of(client="a") for _ in range(10)] + [scope_of(client="b")], at_once=3, there=4)
    assert site.most == {"address a": 3, "address b": 1}


def test_a_request_with_a_long_body_waits_for_the_heavy_slot() -> None:
    short = [scope_of(client="a", length=LIGHT_BYTES) for _ in range(2)]
    asked_first = [{**heavy("a"), BODY_PENDING_KEY: True} for _ in range(2)]
    play([*(heavy("a") for _ in range(4)), *short, *asked_first], at_once=8, there=1 + 2 + 2)


def test_one_very_long_body_per_tenant_is_parsed_at_a_time() -> None:
    long = [scope_of(client="a", length=2 * 1024 * 1024) for _ in range(4)]
    play([*long, heavy("a"), heavy("a")], at_once=8, there=1 + 2, heavy_at_once=3)


def test_a_batch_counts_as_heavy_at_a_lower_size() -> None:
    def batches(length: int) -> list[dict[str, Any]]:
        return [scope_of(length=length, path=BATCH) for _ in range(3)]

    play(batches(SMALL_BATCH_BYTES), at_once=8, there=3)
    play(batches(SMALL_BATCH_BYTES + 1), at_once=8, there=1)


@pytest.mark.parametrize("path", sorted(LISTS))
def test_a_list_counts_as_heavy(path: str) -> None:
    assert resolve(path).func is not unknown_route
    play([scope_of(path=path) for _ in range(3)], at_once=8, there=1)


def test_a_request_of_a_disconnected_client_is_not_started() -> None:
    async def run() -> Site:
        site = Site()
        site.go_on.set()
        threads = FairThreads(site, 8, 1)
        with pytest.raises(ClientGone):
            await threads({**scope_of(), GONE_KEY: lambda: True}, nothing, nothing)
        await threads({**scope_of(), GONE_KEY: lambda: False}, nothing, nothing)
        assert not threads._turns
        return site

    assert len(asyncio.run(run()).began) == 1


@pytest.mark.parametrize(("at_once", "order"), [(1, "abcaa"), (2, "aabca")])
def test_heavy_requests_of_all_tenants_are_answered_in_turns(at_once: int, order: str) -> None:
    submits = [heavy("a"), heavy("a"), heavy("a"), heavy("b"), heavy("c")]
    site = play(submits, at_once=8, there=at_once, heavy_at_once=at_once)
    assert "".join(one[-1] for one in site.began) == order


def test_a_request_that_waits_for_the_heavy_slot_blocks_no_thread_of_its_tenant() -> None:
    waiting = [heavy("a") for _ in range(5)]
    site = play([heavy("b"), *waiting, scope_of(client="a"), scope_of(client="a")], at_once=2, there=2)
    assert site.began[:2] == ["address b", "address a"]


def test_a_tenant_without_a_free_thread_does_not_block_the_heavy_slot() -> None:
    site = play([scope_of(client="a"), heavy("a"), heavy("b")], at_once=1, there=2)
    assert site.began[:2] == ["address a", "address b"]


def test_a_request_that_ends_while_waiting_releases_its_turn() -> None:
    async def run() -> None:
        site = Site()
        threads = FairThreads(site, 1, 1)
        first, second, third = (asyncio.create_task(threads(scope_of(), nothing, nothing)) for _ in range(3))
        await asyncio.sleep(0)
        second.cancel()
        site.go_on.set()
        await asyncio.gather(first, third)
        assert not threads._turns

    asyncio.run(run())


def test_more_than_a_tenant_may_have_in_flight_is_refused(web: Web, tenant: Account) -> None:
    bearer = {"Authorization": f"Bearer {tenant.key}"}
    url = f"{web.url}/api/v1/queue/jobs"
    assert requests.get(url, headers=bearer, timeout=60).status_code == 200
    wait_for(lambda: not web.gateway._requests._held)
    with web.gateway._requests.of(f"tenant {tenant.tenant.pk}"):
        web.gateway._requests.most = 1
        refused = requests.get(url, headers=bearer, timeout=60)
    web.gateway._requests.most, web.gateway._bodies.most = 1000, 0
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests_in_flight")
    assert refused.headers["Retry-After"] == "1"
    assert jobs.ports.production_ports().request_refusals._counts["too_many_requests_in_flight"] == 1
    with web.gateway._bodies.of(f"tenant {tenant.tenant.pk}", 5):
        assert requests.get(url, headers=bearer, timeout=60).status_code == 200, "the request has no body"
        refused = requests.post(f"{web.url}{SUBMIT}", json={}, headers=bearer, timeout=60)
    assert refused.json()["detail"].startswith("0 bytes of requests")
    assert requests.get(url, headers=bearer, timeout=60).status_code == 200


def test_waiting_requests_of_a_tenant_are_bounded(web: Web, tenant: Account) -> None:
    bearer = {"Authorization": f"Bearer {tenant.key}"}
    job = new_job(tenant.tenant)
    web.gateway._waits.most = 1
    wait_for(lambda: not web.gateway._waits._held)
    requests.get(f"{web.url}/api/v1/queue/jobs/{job.id}", headers=bearer, timeout=60)
    with web.gateway._waits.of(f"tenant {tenant.tenant.pk}"):
        refused = requests.get(f"{web.url}/api/v1/queue/jobs/{job.id}?wait=50", headers=bearer, timeout=40)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests_in_flight")
        accepted = requests.post(
            f"{web.url}{SUBMIT}",
            json={"model": "zimg", "payload": {}},
            headers=bearer | {"Prefer": "wait=50"},
            timeout=40,
        )
        assert (accepted.status_code, accepted.json()["status"]) == (202, "queued")
        assert "Preference-Applied" not in accepted.headers
    wait_for(lambda: not web.gateway._waits._held)


@pytest.mark.django_db
def test_refusals_are_counted_by_code(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = jobs.ports.production_ports().request_refusals
    for _ in range(3):
        count_refusal(TooManyInFlight(5, "requests"))
    monkeypatch.setattr(refused, "_written_at", float("inf"))
    refused.write()
    assert counters.read(counters.Name.REQUESTS_REFUSED) == []
    refused.write(now=True)
    assert counters.read(counters.Name.REQUESTS_REFUSED) == [("", "too_many_requests_in_flight", 3)]


def heavy_requests_at_once() -> int:
    site: Any = make_gateway()
    while not isinstance(site, FairThreads):
        site = site._site
    return site._heavy_at_once


@pytest.mark.parametrize("vendor", ["sqlite", "postgresql"])
def test_concurrent_heavy_requests_are_a_setting(
    vendor: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "vendor", vendor)
    assert heavy_requests_at_once() == 1
    settings.DISPATCHER = settings.DISPATCHER.__class__(web_heavy_at_once=3)
    assert heavy_requests_at_once() == 3


def test_web_threads_use_a_short_switch_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    result: list[float] = []
    monkeypatch.setattr(asgi.sys, "setswitchinterval", result.append)
    asgi.make_application()
    assert result == [0.0005]
