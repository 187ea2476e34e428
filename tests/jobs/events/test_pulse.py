"""The pulse for pages: sent soon after a change, not too often, and periodically without changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from jobs.events.announce import Announcer
from jobs.events.hub import EventHub
from jobs.events.stream import stream_pulse
from tests.support.announcements import announce_patiently
from tests.support.hubs import NOWHERE, on_a_loop

LONG = 60.0
CHANGED = b"event: changed\ndata:\n\n"


class Browser:
    """A client that records messages and disconnects on request."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False
        self.left = asyncio.Event()
        self.got = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.sent.append(message["body"])
            self.closed = not message["more_body"]
        self.got.set()

    @property
    def changes(self) -> int:
        return self.sent.count(CHANGED)

    async def until(self, sign: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not sign():
                self.got.clear()
                await self.got.wait()


class OnePulse:
    def __init__(self) -> None:
        self.pulse = asyncio.Event()

    @asynccontextmanager
    async def pulses(self) -> AsyncIterator[asyncio.Event]:
        yield self.pulse


def stream(browser: Browser, hub: Any, **seconds: float) -> asyncio.Task[None]:
    known = {"rest_seconds": 0.0, "quiet_seconds": LONG, "stream_seconds": LONG}
    return asyncio.create_task(stream_pulse(hub, browser.receive, browser.send, **(known | seconds)))


@on_a_loop
async def test_an_announcement_is_sent_at_once_and_many_are_merged() -> None:
    browser, hub = Browser(), OnePulse()
    task = stream(browser, hub, rest_seconds=LONG)
    hub.pulse.set()
    await browser.until(lambda: browser.changes == 1)
    for _ in range(5):
        hub.pulse.set()
        await asyncio.sleep(0)
    assert browser.changes == 1
    browser.left.set()
    await asyncio.wait_for(task, 20)


@on_a_loop
async def test_a_quiet_pulse_is_still_sent_periodically() -> None:
    browser = Browser()
    task = stream(browser, OnePulse(), quiet_seconds=0.001)
    await browser.until(lambda: browser.changes >= 3)
    browser.left.set()
    await asyncio.wait_for(task, 20)
    assert not browser.closed


@on_a_loop
async def test_a_pulse_stream_ends_so_that_the_browser_is_authorized_again() -> None:
    browser = Browser()
    await asyncio.wait_for(stream(browser, OnePulse(), quiet_seconds=0.001, stream_seconds=0.01), 20)
    assert browser.closed


def test_the_hub_passes_announcements_to_pulses(
    valkey: EmbeddedValkey, settings: Any, monkeypatch: Any
) -> None:
    settings.REDIS_URL = valkey.url
    announce_patiently(monkeypatch)

    @on_a_loop
    async def story() -> None:
        hub = EventHub(valkey.url, read=lambda cursors: {})
        async with hub.pulses() as pulse, asyncio.timeout(20):
            while not hub.is_subscribed:
                await asyncio.sleep(0.01)
            assert not pulse.is_set()
            await asyncio.to_thread(Announcer(valkey.url), ["a-job-without-watchers"])
            await pulse.wait()
        assert hub._pulses == set()
        await hub.close()

    story()


@on_a_loop
async def test_without_redis_no_announcement_and_no_error_occurs() -> None:
    hub = EventHub(NOWHERE, read=lambda cursors: {})
    async with hub.pulses() as pulse:
        await asyncio.sleep(0)
        assert not pulse.is_set()
    await hub.close()
