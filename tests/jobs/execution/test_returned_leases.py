"""A lease returned without an end to write does not come back in a rebuilt index."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.db import OperationalError

from foundation.ids import new_id
from gpus.errors import LeasingUnavailable
from gpus.leasing.keys import prefix
from gpus.models import ModelConfig
from jobs.domain.states import JobState
from jobs.index_rebuild.rebuild import Progress, Rebuild
from jobs.models import Attempt
from jobs.transitions import StartOutcome
from tests.jobs.execution.by_hand import Hands, by_hand
from tests.support.worker_harness import WorkerHarness, state

pytestmark = pytest.mark.django_db(transaction=True)


def reply_lost(real: Any, *given: Any, **named: Any) -> Any:
    real(*given, **named)
    raise LeasingUnavailable("no reply")


def begin_rebuild(harness: WorkerHarness, hands: Hands, redis_url: str) -> Rebuild:
    """Flush the index, and begin a new one, to which workers announce their leases."""
    client = redis.Redis.from_url(redis_url)
    client.delete(*client.keys(prefix(harness.leases.fleet) + "*"))
    rebuild = Rebuild("main", harness.leases, hands.worker.ports, "r")
    assert rebuild.step() is Progress.LISTENING
    return rebuild


def announce(hands: Hands) -> None:
    hands.worker.completion.keeper.step(hands.clock.monotonic() + 100)


def test_a_run_that_never_began_is_not_announced_as_an_end(harness: WorkerHarness, valkey: Any) -> None:
    """The database refused the start, and Redis' reply to the returned lease was lost. As an uncommitted end
    it would be judged lost, and the job, which may run once, would fail without a run."""
    ModelConfig.objects.filter(name="m").update(at_most_once=True)
    hands = by_hand(harness)
    job = hands.submit()
    hands.writer.at_once = False
    hands.process.on_await = lambda: hands.writer.refuse(OperationalError("disk I/O error"))
    hands.leases.instead["release"] = reply_lost
    hands.worker.work("m")
    assert (hands.gpu.sent, hands.worker.completion.keeper.held()) == ([], 1)

    rebuild = begin_rebuild(harness, hands, valkey.url)
    announce(hands)
    rebuild.listening_since = hands.clock.monotonic() - 100
    assert rebuild.step() is Progress.OPEN
    assert (hands.slot(), hands.waiting()) == ("free", 1)

    del hands.leases.instead["release"]
    hands.worker.completion.retry_releases()
    assert hands.worker.completion.keeper.held() == 0
    hands.writer.at_once = True
    hands.worker.work("m")
    assert (state(job), Attempt.objects.count(), hands.slot()) == (JobState.COMPLETED, 1, "free")


def test_a_lease_whose_return_failed_is_renewed_until_it_is_returned(harness: WorkerHarness) -> None:
    def away(real: Any, *given: Any, **named: Any) -> Any:
        raise LeasingUnavailable("Redis is away")

    hands = by_hand(harness, generation_age=0.0)
    hands.submit()
    hands.writer.at_once = False
    hands.process.on_await = lambda: hands.writer.refuse(OperationalError("disk I/O error"))
    hands.leases.instead["release"] = away
    hands.worker.work("m")
    keeper = hands.worker.completion.keeper
    hands.clock.move(1.0)
    assert (hands.slot(), len(keeper.unconfirmed(0.5))) == ("leased", 1)
    announce(hands)
    assert keeper.unconfirmed(0.5) == []

    del hands.leases.instead["release"]
    hands.worker.completion.retry_releases()
    assert (hands.slot(), keeper.held()) == ("free", 0)


@pytest.mark.parametrize("is_retry", [False, True])
def test_a_lease_restored_by_a_renewal_under_way_is_returned_again(
    harness: WorkerHarness, valkey: Any, is_retry: bool
) -> None:
    hands = by_hand(harness)
    hands.submit()
    completion = hands.worker.completion
    lease = hands.leases.real.claim("m", worker="w", attempt_id=new_id())
    assert lease is not None
    completion.keeper.add(lease)
    begin_rebuild(harness, hands, valkey.url)

    def returned_meanwhile(real: Any, *given: Any) -> Any:
        if is_retry:
            hands.leases.instead["release"] = reply_lost
        spec = hands.worker.ports.registry.spec_or_defaults("m", "m")
        completion.refuse_start(hands.leases, lease, StartOutcome.JOB_MOVED, spec, proven_free=True)
        if is_retry:
            del hands.leases.instead["release"]
            completion.retry_releases()
        return real(*given)

    hands.leases.instead["renew"] = returned_meanwhile
    announce(hands)
    del hands.leases.instead["renew"]
    assert hands.slot() == "leased"
    completion.retry_releases()
    assert (hands.slot(), completion.keeper.held()) == ("free", 0)
