"""A receiver on loopback that answers as a test says, and keeps the requests that it got."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from ipaddress import ip_address

import pytest

from jobs.callbacks import guard
from jobs.callbacks.message import callback_for, renew_secret
from jobs.domain.states import JobState
from jobs.models import Job, Tenant
from tests.support.receivers import NOW, Sent, loopback_allowed, receiver

__all__ = ["loopback_allowed", "receiver"]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Stands in for DNS: per name the answers to come, the last one for ever. Unknown names don't resolve."""
    table: dict[str, list[list[str]]] = {}

    def resolve(host: str, port: int) -> list[guard.Address]:
        if host not in table:
            raise OSError(f"no such name: {host}")
        answers = table[host]
        return [ip_address(text) for text in (answers.pop(0) if len(answers) > 1 else answers[0])]

    monkeypatch.setattr(guard, "resolve", resolve)
    return table


@pytest.fixture
def send() -> Callable[..., Sent]:
    def make(url: str, *, now: datetime = NOW) -> Sent:
        tenant = Tenant.objects.create(name=f"t{Tenant.objects.count()}")
        secret = renew_secret(tenant)
        job = Job.objects.create(
            tenant=tenant,
            model="zimg",
            pool="zimg",
            payload={"prompt": "a sunset"},
            callback_url=url,
            state=JobState.COMPLETED,
            result={"url": "s3://image.png"},
            place_us=1,
            created_at=now,
            finished_at=now,
        )
        callback = callback_for(job, now=now)
        assert callback is not None
        callback.save(force_insert=True)
        return Sent(callback, secret)

    return make
