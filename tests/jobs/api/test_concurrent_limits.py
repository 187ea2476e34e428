"""Queue limits are exact under concurrent submits, on every database."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from jobs.limits.submit_limits import FEW
from jobs.models import Job
from tests.support.api_harness import Account, account, key_client, make_model
from tests.support.limits import BATCH, JOB, SUBMIT, limit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
THREADS = 20


def at_once(threads: int, submit: Callable[[Any, int], str], *accounts: Account) -> Counter[str]:
    """Return the outcomes of concurrent submits. submit: called with client and number."""
    start = threading.Barrier(threads)

    def run(number: int) -> str:
        try:
            client = key_client(accounts[number % len(accounts)].key)
            start.wait(30)
            return submit(client, number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(threads) as pool:
        return Counter(pool.map(run, range(threads)))


def one(client: Any, number: int) -> str:
    body = client.post(SUBMIT, JOB, format="json").json()
    return str(body.get("code", "accepted"))


def test_of_twenty_concurrent_submits_only_the_limit_is_accepted() -> None:
    acme = account("acme")
    make_model("zimg")
    limit(acme, max_queued=1)
    assert at_once(THREADS, one, acme) == {"accepted": 1, "tenant_queue_full": THREADS - 1}
    assert Job.objects.count() == 1


def test_tenants_share_the_limit_of_a_model() -> None:
    make_model("zimg", max_queued=3)
    both = (account("acme"), account("other"))
    assert at_once(THREADS, one, *both) == {"accepted": 3, "model_queue_full": THREADS - 3}
    assert Job.objects.count() == 3


def test_batches_with_models_in_another_order_do_not_deadlock() -> None:
    acme = account("acme")
    names = ("flux", "llama", "zimg")
    for name in names:
        make_model(name, max_queued=8)

    def batch(client: Any, number: int) -> str:
        order = names if number % 2 else names[::-1]
        jobs = [JOB | {"model": name} for name in order for _ in range(4)]
        assert len(jobs) > FEW
        answer = client.post(BATCH, {"jobs": jobs}, format="json")
        assert answer.status_code == 202, answer.content
        return "answered"

    assert at_once(8, batch, acme) == {"answered": 8}
    found = Counter(Job.objects.values_list("model", flat=True))
    assert found == dict.fromkeys(names, 8)


@pytest.mark.parametrize(("most", "jobs", "waits"), [
    (None, 1, False), (100_000, 1, False), (100_000, FEW, False), (100_000, FEW + 1, True), (5, 1, True),
])  # fmt: skip
def test_a_transaction_far_from_a_limit_takes_no_lock(most: int | None, jobs: int, waits: bool) -> None:
    acme = account("acme")
    make_model("zimg")
    limit(acme, max_queued=most)
    with CaptureQueriesContext(connection) as queries:
        assert acme.client.post(BATCH, {"jobs": [JOB] * jobs}, format="json").status_code == 202
    locks = [query for query in queries.captured_queries if "advisory" in query["sql"]]
    assert len(locks) == (waits and connection.vendor == "postgresql")


def test_small_transactions_skip_the_lock_only_above_the_margin(settings: Any) -> None:
    acme = account("acme")
    make_model("zimg")
    settings.DISPATCHER = replace(settings.DISPATCHER, max_batch_jobs=50)
    for most, waits in ((50 + 100 * FEW, False), (50 + 100 * FEW - 1, True)):
        limit(acme, max_queued=most)
        Job.objects.all().delete()
        with CaptureQueriesContext(connection) as queries:
            assert acme.client.post(SUBMIT, JOB, format="json").status_code == 202
        locks = [query for query in queries.captured_queries if "advisory" in query["sql"]]
        assert len(locks) == (waits and connection.vendor == "postgresql")
