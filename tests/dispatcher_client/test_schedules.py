"""The calls about schedules, against the real web process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher_client import Client, Invalid, NotFound
from tests.support.api_harness import Account, api
from tests.support.live_web import redis_url, tenant, web
from tests.support.new_client import NewClient
from tests.support.servers.web import Web

__all__ = ["api", "redis_url", "tenant", "web"]

NIGHTLY: dict[str, Any] = {
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "submit": {"model": "zimg", "payload": {"prompt": "x"}},
}


@pytest.fixture
def client(web: Web, tenant: Account, new_client: NewClient) -> Client:
    return new_client(web.url, tenant.key)


def test_a_schedule_is_stored_previewed_and_deleted(client: Client) -> None:
    preview = client.schedules.preview(NIGHTLY, 3)
    assert (len(preview.next), preview.paused) == (3, False)
    assert preview.words == "At 02:30 every day (Europe/Berlin)"
    stored = client.schedules.put("nightly", NIGHTLY)
    assert stored.next is not None
    assert len(stored.next) == 10
    assert client.schedules.get("nightly") == stored
    assert client.schedules.preview("nightly", 2).next == stored.next[:2]
    assert (stored.start_at, stored.end_at, stored.pause_after_failures) == (None, None, None)
    assert stored.created_at == stored.updated_at
    assert [one.name for one in client.schedules.list()] == ["nightly"]
    with pytest.raises(Invalid) as refused:
        client.schedules.put("nightly", {**NIGHTLY, "cron": "0 0 31 2 *"})
    assert refused.value.pointer == "/cron"
    client.schedules.delete("nightly")
    with pytest.raises(NotFound):
        client.schedules.get("nightly")


def test_a_schedule_is_triggered_backfilled_and_paused(client: Client) -> None:
    client.schedules.put("nightly", NIGHTLY)
    first = client.schedules.trigger("nightly", idempotency_key="k")
    assert (first.cause, (first.by or "").startswith("key:")) == ("request", True)
    assert client.schedules.trigger("nightly", idempotency_key="k").job_id == first.job_id
    now = datetime.now(UTC)
    counted = client.schedules.backfill("nightly", now - timedelta(days=3), now, dry_run=True)
    assert counted.count == 3
    client.schedules.backfill("nightly", now - timedelta(days=3), now)
    outcomes = [one.outcome for one in client.schedules.firings("nightly")]
    assert sorted(outcomes) == ["started", "waiting", "waiting", "waiting"]
    assert [one.outcome for one in client.schedules.firings("nightly", outcome="started")] == ["started"]
    assert [client.schedules.cancel_backfills("nightly") for _ in range(2)] == [3, 0]
    paused = client.schedules.pause("nightly", reason="holidays")
    assert (paused.paused, paused.pause_reason, paused.next) == (True, "holidays", ())
    assert client.schedules.preview("nightly", 1).paused
    with pytest.raises(Invalid) as refused:
        client.schedules.pause("nightly", until=now - timedelta(days=1))
    assert (refused.value.code, refused.value.pointer) == ("pause_refused", "/until")
    assert not client.schedules.resume("nightly").paused
