"""Limits of a tenant."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from gpus.models import ModelConfig, Server
from jobs.models import Rollup
from tests.support.api_harness import Account
from tests.support.factories import make_server

SUBMIT, BATCH = "/api/v1/queue/submit", "/api/v1/queue/submit-batch"


JOB = {"model": "zimg", "payload": {}}


REJECT = JOB | {"if_busy": "reject"}


@pytest.fixture
def server(zimg: ModelConfig) -> Server:
    return make_server(model=zimg, healthy=True)


def limit(account: Account, **values: Any) -> None:
    for name, value in values.items():
        setattr(account.tenant, name, value)
    account.tenant.save()


def submit(account: Account, body: Any = JOB, **headers: Any) -> Any:
    return account.client.post(SUBMIT, body, format="json", **headers)


def used(account: Account, at: datetime, seconds: float) -> None:
    Rollup.objects.create(
        span_seconds=3600, at=at, model="zimg", tenant=account.tenant, completed=1, gpu_seconds=seconds
    )
