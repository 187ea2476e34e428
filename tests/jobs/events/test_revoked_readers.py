"""Streams end within a minute after their reader's key is revoked, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.events.hub import NewEvents, SeenEvent
from jobs.events.stream import stream_events, stream_pulse
from jobs.ports import KEEP_KEY_SECONDS
from tests.jobs.events.virtual_loop import run_virtually
from tests.support.readers import FOLLOW, NEVER, Client, stays

PROMISED_SECONDS = 60.0
"""What docs/explanation/security.md says."""


class Hub:
    """A job that never ends, with periodic events."""

    def __init__(self, every: float) -> None:
        self._every = every

    @asynccontextmanager
    async def watch(self, job_id: str, after: int) -> AsyncIterator[Any]:
        news: asyncio.Queue[NewEvents] = asyncio.Queue()

        def come(number: int) -> None:
            news.put_nowait(
                NewEvents(job_id, "running", number, number - 1, (SeenEvent(number, "progress", {}),))
            )

        with self._beating(come):
            yield SimpleNamespace(events=news.get)

    @asynccontextmanager
    async def pulses(self) -> AsyncIterator[asyncio.Event]:
        pulse = asyncio.Event()
        with self._beating(lambda number: pulse.set()):
            yield pulse

    @contextmanager
    def _beating(self, beat: Callable[[int], None]) -> Iterator[None]:
        async def run() -> None:
            for number in count(1):
                await asyncio.sleep(self._every)
                beat(number)

        task = asyncio.ensure_future(run())
        try:
            yield
        finally:
            task.cancel()


def stream_until_the_end(revoked_at: float, every: float) -> Client:
    async def run() -> Client:
        client = Client()
        now = asyncio.get_running_loop().time

        async def may_follow() -> bool:
            """Follow a job with a cached key."""
            return now() < revoked_at + KEEP_KEY_SECONDS

        hub: Any = Hub(every)
        await stream_events(hub, FOLLOW, stays, client.send, may_follow=may_follow)
        return client

    return run_virtually(run())


@pytest.mark.parametrize("every", [1.0, 14.0, 40.0, NEVER])
@pytest.mark.parametrize("revoked_at", [0.0, 27.9, 28.1, 95.0])
def test_a_stream_ends_within_a_minute_after_its_key_is_revoked(revoked_at: float, every: float) -> None:
    client = stream_until_the_end(revoked_at, every)
    assert client.has_ended
    ended = client.said[-1][0]
    assert revoked_at <= ended <= revoked_at + PROMISED_SECONDS
    assert not any(b"event: done" in said for _, said in client.said), "the job continues"


def test_a_stream_continues_while_its_key_is_valid() -> None:
    client = stream_until_the_end(revoked_at=7200.0, every=600.0)
    events = [at for at, said in client.said if b"event: progress" in said]
    assert len(events) == 12


@pytest.mark.parametrize("every", [1.0, 3.0, NEVER])
def test_an_admin_stream_ends_within_a_minute_for_every_reader(every: float) -> None:
    async def run() -> Client:
        client = Client()
        hub: Any = Hub(every)
        await stream_pulse(hub, stays, client.send)
        return client

    client = run_virtually(run())
    assert client.has_ended
    assert client.said[-1][0] <= PROMISED_SECONDS
