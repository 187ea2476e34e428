"""How long a server that is busy, or can't be reached, gets no request."""

from __future__ import annotations

import pytest

from gpus.errors import (
    BadInput,
    ConnectFailed,
    CredentialsRefused,
    GpuBusy,
    ServerFailed,
    ServerLost,
    StaleFence,
)
from gpus.runners.base import Accepted
from jobs.execution.gpu_worker import GpuWorker
from tests.jobs.execution.by_hand import by_hand
from tests.support.fakes import make_ports


@pytest.fixture
def worker() -> GpuWorker:
    return GpuWorker(make_ports())


@pytest.mark.parametrize(
    "error",
    [GpuBusy(), GpuBusy(retry_after_seconds=0.0), ConnectFailed(), CredentialsRefused(), StaleFence()],
    ids=["busy", "busy, again in 0 s", "connect", "credentials", "stale fence"],
)
def test_the_backoff_doubles_from_one_second_to_thirty(worker, error):
    rests = [worker.completion.backoff.after_answer("gpu-1", error) for _ in range(7)]
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize("answer", [None, ServerFailed(), BadInput(), ServerLost()], ids=str)
def test_any_other_answer_resets_the_backoff(worker, answer):
    worker.completion.backoff.after_answer("gpu-1", GpuBusy())
    worker.completion.backoff.after_answer("gpu-1", GpuBusy())
    assert worker.completion.backoff.after_answer("gpu-1", answer) is None, "it rests no more"
    assert worker.completion.backoff.after_answer("gpu-1", GpuBusy()) == 1.0


def test_each_server_has_its_own_backoff(worker):
    worker.completion.backoff.after_answer("gpu-1", GpuBusy())
    worker.completion.backoff.after_answer("gpu-1", GpuBusy())
    assert worker.completion.backoff.after_answer("gpu-2", GpuBusy()) == 1.0
    worker.completion.backoff.reset("gpu-2")
    assert worker.completion.backoff.after_answer("gpu-1", GpuBusy()) == 4.0


@pytest.mark.parametrize(("asked", "rest"), [(7.0, 7.0), (1.0, 1.0), (3600.0, 3600.0), (1e9, 3600.0)])
def test_the_servers_retry_after_wins_up_to_an_hour(worker, asked, rest):
    assert worker.completion.backoff.after_answer("gpu-1", GpuBusy(retry_after_seconds=asked)) == rest
    assert worker.completion.backoff.after_answer("gpu-1", GpuBusy()) == 2.0, "the doubling goes on behind it"


@pytest.mark.parametrize("asked", [0.5, 0.0, -5.0])
def test_a_retry_after_below_a_second_does_not_stop_the_doubling(worker, asked):
    """Else each refusal is another attempt at once, without end."""
    busy = GpuBusy(retry_after_seconds=asked)
    assert [worker.completion.backoff.after_answer("gpu-1", busy) for _ in range(6)] == [
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
        30.0,
    ]


@pytest.mark.django_db(transaction=True)
def test_a_server_that_accepts_a_run_has_answered(harness):
    """Long before that run's end, which may come elsewhere."""
    hands = by_hand(harness, Accepted("r1"))
    hands.worker.completion.backoff.after_answer("gpu-1", GpuBusy())
    hands.worker.completion.backoff.after_answer("gpu-1", GpuBusy())
    hands.submit()
    hands.gpu.on_start = lambda run: hands.worker.drain()
    [report] = hands.worker.work("m")
    assert report.outcome == "handed_over"
    assert hands.worker.completion.backoff.after_answer("gpu-1", GpuBusy()) == 1.0


@pytest.mark.django_db(transaction=True)
def test_the_backoff_is_part_of_the_release(harness):
    hands = by_hand(harness, GpuBusy(retry_after_seconds=1e9))
    hands.submit()
    hands.worker.work("m")
    [(_, named)] = hands.leases.named("release")
    assert named["rest_seconds"] == 3600.0
    assert harness.leases.slots("gpu-1")[0].resting
