"""A process that is killed after it sent COMMIT, before it reads the answer: what it wrote stands, once."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from dispatcher_project.supervisor.embedded import find_valkey
from jobs.models import Job
from tests.support.system.judges import Judge
from tests.support.system.running import System

pytestmark = [pytest.mark.scenario, pytest.mark.database]


class Mortal(System):
    """order: where a query is put (`dying/sitecustomize.py`)."""

    order: Path


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary")
    folder = tmp_path_factory.mktemp("mortal")
    environment = {"DIES_AT": str(folder / "order"), "PYTHONPATH": str(Path(__file__).with_name("dying"))}
    system = Mortal(folder / "var", environment=environment)
    system.order = folder / "order"
    yield system
    system.stop()


@pytest.fixture
def judge(mortal: Mortal, django_db_blocker: DjangoDbBlocker) -> Iterator[Judge]:
    judge = Judge(mortal, django_db_blocker)
    yield judge
    judge.assert_laws()


def dies_once(mortal: Mortal, child: str, query: str) -> int:
    """The pid that will be killed; the query decides in which transaction."""
    pid = mortal.pid(child)
    fresh = mortal.order.with_suffix(".new")
    fresh.write_text(query)
    fresh.rename(mortal.order)
    return pid


def submit(mortal: Mortal, key: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{mortal.tenant.url}/api/v1/queue/submit",
        method="POST",
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {mortal.facts['tenant_key']}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))


def test_a_submit_that_the_web_died_over_is_the_same_job_when_it_comes_again(
    mortal: Mortal, judge: Judge
) -> None:
    server = mortal.add_server("submitted")
    body = {"model": "submitted", "payload": {"n": 1}}
    web = dies_once(mortal, "web", "SELECT 1 FROM jobs_job WHERE model = 'submitted'")
    with pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)):
        submit(mortal, "once", body)
    mortal.wait_for_successor("web", web)
    again = submit(mortal, "once", body)
    mortal.tenant.accepted += 1
    assert mortal.tenant.finished(again["job_id"])["status"] == "completed"
    with judge.rows():
        assert list(Job.objects.filter(model="submitted").values_list("id", flat=True)) == [again["job_id"]]
    server.assert_each_ran_once([again["job_id"]])
