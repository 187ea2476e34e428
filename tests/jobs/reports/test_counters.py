from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction

from jobs.models import Tally
from jobs.reports import counters
from jobs.reports.counters import Name

pytestmark = pytest.mark.database


@pytest.mark.django_db
def test_counts_are_added_and_zero_counts_are_not_written() -> None:
    counters.add({(Name.SWEEP_REPAIRS, "", "fill"): 2, (Name.SWEEP_REPAIRS, "", "idle"): 0})
    counters.add({(Name.SWEEP_REPAIRS, "", "fill"): 3, (Name.ATTEMPT_ENDS, "m", "busy/requeued"): 1})
    assert counters.read(Name.SWEEP_REPAIRS) == [("", "fill", 5)]
    assert counters.read(Name.ATTEMPT_ENDS) == [("m", "busy/requeued", 1)]


@pytest.mark.django_db
def test_a_rollback_undoes_the_count() -> None:
    with transaction.atomic():
        counters.add({(Name.RESULTS_REFUSED, "", ""): 1})
        transaction.set_rollback(True)
    assert counters.read(Name.RESULTS_REFUSED) == []


@pytest.mark.django_db(transaction=True)
def test_concurrent_counts_are_not_lost() -> None:
    def count() -> None:
        for _ in range(10):
            counters.add({(Name.RESULTS_REFUSED, "", ""): 1, (Name.SWEEP_REPAIRS, "", "fill"): 1})
        connection.close()

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(Tally.objects.values_list("count", flat=True)) == {30}


@pytest.mark.django_db(transaction=True)
def test_best_effort_counting_does_not_wait_for_a_hung_transaction() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks the whole database: see the writer's own tests")
    counters.add({(Name.RESULTS_REFUSED, "", ""): 1})
    counted, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        with transaction.atomic():
            counters.add({(Name.RESULTS_REFUSED, "", ""): 1})
            counted.set()
            go_on.wait(30)
        connection.close()

    other = threading.Thread(target=hang)
    other.start()
    assert counted.wait(30)
    counters.add_if_possible(Name.RESULTS_REFUSED, 1)
    assert not go_on.is_set()
    go_on.set()
    other.join()
    assert counters.read(Name.RESULTS_REFUSED) == [("", "", 2)]
