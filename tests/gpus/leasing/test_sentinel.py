"""A master behind a Sentinel that hangs, dies, or is followed by a replica that lacks its last writes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import connect
from gpus.leasing.scripts import _ask
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.support.servers.sentinels import NEVER_SECONDS, direct, wait_until, watched

PROMISED_SECONDS = 10.0
"""docs/reference/failures.md, from the promotion on."""
THREADS = 4


def test_an_answer_that_came_too_late_is_not_the_next_commands(tmp_path: Path) -> None:
    with watched(tmp_path, down_after_seconds=NEVER_SECONDS) as redis_:
        client: Any = connect(redis_.url, timeout_seconds=0.4)
        harness = LeaseHarness(client, "main").open()
        harness.server(slots=2)
        redis_.pause(redis_.master)
        with pytest.raises(LeasingUnavailable, match="does not answer"):
            harness.leases.generation()
        redis_.resume(redis_.master)
        echoes = [_ask(client, ("ECHO", number)) for number in range(4)]
        assert echoes == ["0", "1", "2", "3"]
        harness.push("j1")
        assert harness.must_claim().job_id == "j1"
        client.close()


def test_a_master_that_hangs_is_left_once_another_was_promoted(tmp_path: Path) -> None:
    with watched(tmp_path) as redis_:
        client: Any = connect(redis_.url, timeout_seconds=0.4)
        harness = LeaseHarness(client, "main").open()
        with ThreadPoolExecutor(THREADS) as threads:  # connections that wait in the pool, too
            barrier = threading.Barrier(THREADS)
            list(threads.map(lambda _: barrier.wait() >= 0 and harness.leases.depth(POOL), range(THREADS)))
        redis_.pause(redis_.master)
        redis_.wait_for_promotion()
        promoted_at = time.monotonic()
        wait_until(lambda: answers(harness))
        assert time.monotonic() - promoted_at < PROMISED_SECONDS
        assert harness.leases.generation() is None  # another run of a server: no lease before a rebuild
        harness.open()
        # the old one still believes that it is the master
        redis_.resume(redis_.master)
        harness.server()
        harness.push("j1")
        assert harness.must_claim().job_id == "j1"
        assert direct(redis_.replica).hexists(f"{harness.prefix}held", "j1")
        client.close()


def test_a_promoted_replica_that_lacks_the_last_writes_is_not_believed(tmp_path: Path) -> None:
    with watched(tmp_path) as redis_:
        client: Any = connect(redis_.url, timeout_seconds=0.4)
        harness = LeaseHarness(client, "main").open()
        harness.server(slots=2)
        harness.push("j1")
        wait_until(lambda: direct(redis_.replica).dbsize() == direct(redis_.master).dbsize())
        redis_.pause(redis_.replica)
        assert harness.must_claim().job_id == "j1"
        redis_.master.kill()
        redis_.resume(redis_.replica)
        redis_.wait_for_promotion()
        wait_until(lambda: answers(harness))
        assert harness.leases.generation() is None
        with pytest.raises(LeasingUnavailable, match="rebuilt"):
            harness.claim()
        client.close()


def answers(harness: LeaseHarness) -> bool:
    try:
        harness.leases.generation()
    except LeasingUnavailable:
        return False
    return True


def test_a_former_master_that_still_answers_is_left(tmp_path: Path) -> None:
    """A promotion unknown to the former master: no call fails."""
    with watched(tmp_path, down_after_seconds=NEVER_SECONDS) as redis_:
        client: Any = connect(redis_.url, timeout_seconds=0.4)
        client.connection_pool.master_seconds = 0.2
        harness = LeaseHarness(client, "main").open()
        held = client.connection_pool.get_connection()  # in use while it happens
        assert harness.leases.generation()  # another, which waits in the pool
        direct(redis_.replica).replicaof("NO", "ONE")
        redis_.name_master(redis_.replica)
        wait_until(lambda: harness.leases.generation() is None, seconds=PROMISED_SECONDS)
        client.connection_pool.release(held)
        assert not held.is_connected
        harness.open()
        assert direct(redis_.replica).exists(f"{harness.prefix}generation")
        client.close()
