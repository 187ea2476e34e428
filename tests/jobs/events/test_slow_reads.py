"""A read of the database that outlasts the keep-alive loses no event, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jobs.events.handover import Follow
from jobs.events.hub import EventHub, NewEvents, SeenEvent
from jobs.events.stream import stream_events
from tests.jobs.events.virtual_loop import run_virtually
from tests.support.readers import FOLLOW, Client, stays

LAST = 5


class SlowReader:
    """Reads one event at a time. As with a thread, a cancelled wait does not stop the read, which moves the
    reader's place on."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._place, self.at_once, self._running = seconds, 0, 0, 0

    async def _read(self) -> NewEvents:
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        await asyncio.sleep(self._seconds)
        self._running -= 1
        self._place += 1
        seen = (SeenEvent(self._place, "progress", {}),)
        status = "completed" if self._place == LAST else "running"
        return NewEvents("run", status, self._place, self._place - 1, seen)

    async def events(self) -> NewEvents | None:
        return await asyncio.shield(asyncio.ensure_future(self._read()))


@pytest.mark.parametrize("seconds", [1.0, 7.0, 16.0, 100.0])
def test_a_stream_sends_each_event_however_long_its_reads_take(seconds: float) -> None:
    reader, client = SlowReader(seconds), Client()

    @asynccontextmanager
    async def source(hub: EventHub, follow: Follow) -> AsyncIterator[SlowReader]:
        yield reader

    async def may_follow() -> bool:
        return True

    hub: Any = None
    following = stream_events(hub, FOLLOW, stays, client.send, may_follow=may_follow, source=source)
    run_virtually(asyncio.wait_for(following, 10_000.0))
    sent = [said.split(b"\n")[0] for _, said in client.said if said.startswith(b"id: ")]
    assert sent == [f"id: {number}".encode() for number in range(1, LAST + 1)]
    assert reader.at_once == 1, "reads of one stream follow each other"
    gaps = [after - before for (before, _), (after, _) in zip(client.said, client.said[1:], strict=False)]
    assert max(gaps) <= 15.0, "the connection is kept alive meanwhile"
