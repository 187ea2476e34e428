"""An end that came too late is counted, for all processes to read."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection

from gpus.protocol import LeaseRef
from jobs.execution.completion import Completion, EndWritten
from jobs.reports import counters
from jobs.transitions import Ended
from tests.support.fakes import AbsentLeases, make_ports

pytestmark = pytest.mark.django_db


def written(number: int, *, won: bool) -> EndWritten:
    return EndWritten(Ended(won=won), AbsentLeases(), LeaseRef("gpu-1/0", f"J{number}", f"A{number}", 1))


def test_refused_results_are_counted_and_those_that_count_are_not() -> None:
    settlement = Completion(make_ports(), name="w", on_lost=lambda ref: None)
    settlement._after_commit([written(1, won=True), written(2, won=False), written(3, won=False)])
    assert counters.read(counters.Name.RESULTS_REFUSED) == [("", "", 2)]


def test_the_writer_goes_on_when_counting_fails() -> None:
    def away(*_: object) -> None:
        raise OperationalError("gone")

    settlement = Completion(make_ports(), name="w", on_lost=lambda ref: None)
    with connection.execute_wrapper(away):
        settlement._after_commit([written(1, won=False)])
    assert len(settlement._unconfirmed) == 1
