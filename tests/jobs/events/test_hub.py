from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from jobs.events.hub import FROM_NOW_ON, EventHub, NewEvents, SeenEvent
from tests.support.hubs import NOWHERE, on_a_loop


class FakeEventStore:
    """Jobs in memory, with a count of the reads."""

    def __init__(self) -> None:
        self.events: dict[str, int] = {}
        self.over: set[str] = set()
        self.reads: list[dict[str, int]] = []
        self.broken = False
        self.most = 1000
        """Events of one job in one read."""

    def read(self, cursors: Mapping[str, int]) -> dict[str, NewEvents]:
        self.reads.append(dict(cursors))
        if self.broken:
            raise OSError("database away")
        return {
            job: NewEvents(
                job,
                "completed" if job in self.over else "running",
                self.events[job],
                after,
                tuple(SeenEvent(seq, "e", {}) for seq in range(after + 1, last + 1)),
                has_more=last < self.events[job],
            )
            for job, after in cursors.items()
            if job in self.events
            for last in [min(self.events[job], after + self.most)]
        }


def hub_of(store: FakeEventStore, **settings: float) -> EventHub:
    return EventHub(NOWHERE, read=store.read, **({"poll_seconds": 0.02} | settings))


def seqs(news: NewEvents | None) -> list[int]:
    assert news is not None
    return [event.seq for event in news.events]


@on_a_loop
async def test_each_listener_continues_where_it_was() -> None:
    store = FakeEventStore()
    store.events["a"] = 3
    hub = hub_of(store)
    async with hub.watch("a", 0) as early, hub.watch("a", 2) as late:
        assert seqs(await early.events()) == [1, 2, 3]
        assert seqs(await late.events()) == [3]
        store.events["a"] = 4
        assert seqs(await early.events()) == [4]
        assert seqs(await late.events()) == [4]
    await hub.close()


@on_a_loop
async def test_events_beyond_one_read_follow_with_the_next_and_the_end_comes_last() -> None:
    store = FakeEventStore()
    store.events["a"], store.most = 7, 3
    store.over.add("a")
    hub = hub_of(store, poll_seconds=60)
    async with asyncio.timeout(20), hub.watch("a", 0) as watch:
        result = [await watch.events() for _ in range(3)]
    assert [seqs(news) for news in result] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [news.is_over for news in result if news] == [False, False, True]
    assert [read["a"] for read in store.reads] == [0, 3, 6]
    await hub.close()


@on_a_loop
async def test_a_slow_listener_keeps_one_read_in_memory_and_misses_no_event() -> None:
    store = FakeEventStore()
    store.events["a"] = 1
    hub = hub_of(store)
    async with asyncio.timeout(20), hub.watch("a", 0) as slow, hub.watch("a", 0) as quick:
        for last in range(1, 6):
            store.events["a"] = last
            assert seqs(await quick.events()) == [last]
        store.over.add("a")
        assert slow.queue.qsize() == 1
        assert seqs(await slow.events()) == [1]
        assert seqs(await slow.events()) == [2, 3, 4, 5]
        del store.events["a"]
        assert await slow.events() is None
    await hub.close()


@on_a_loop
async def test_a_thousand_listeners_are_one_read() -> None:
    store = FakeEventStore()
    store.events |= {f"j{number}": 1 for number in range(400)}
    hub = hub_of(store, poll_seconds=60)
    async with asyncio.timeout(20):
        waiting = [asyncio.create_task(hub.wait_until_over(f"j{n % 400}", 15)) for n in range(1000)]
        while hub.watched < 1000:
            await asyncio.sleep(0)
        while len(store.reads) < 1:
            await asyncio.sleep(0.01)
        store.over |= set(store.events)
        before = len(store.reads)
        hub._mark_dirty()
        assert all(await asyncio.gather(*waiting))
    assert len(store.reads) - before <= 2
    assert hub.watched == 0
    await hub.close()


@on_a_loop
async def test_a_listener_added_during_a_read_misses_no_event() -> None:
    store = FakeEventStore()
    store.events["a"] = 5
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    held = store.read

    def slow(cursors: Mapping[str, int]) -> dict[str, NewEvents]:
        found = held(cursors)
        if len(store.reads) == 1:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(10)
        return found

    hub = EventHub(NOWHERE, read=slow, poll_seconds=60)
    async with asyncio.timeout(20), hub.watch("a", 4) as first:
        while not store.reads:
            await asyncio.sleep(0.01)
        async with hub.watch("a", 0) as second:  # its events are not in the current read
            gate.set()
            assert seqs(await first.events()) == [5]
            assert seqs(await second.events()) == [1, 2, 3, 4, 5]
    await hub.close()


@on_a_loop
async def test_a_deleted_job_ends_its_listeners() -> None:
    hub = hub_of(FakeEventStore())
    assert await hub.wait_until_over("a", 10)
    await hub.close()


@on_a_loop
async def test_an_unavailable_database_is_read_again() -> None:
    store = FakeEventStore()
    store.broken = True
    store.events["a"] = 1
    store.over.add("a")
    hub = hub_of(store)
    waiting = asyncio.create_task(hub.wait_until_over("a", 15))
    while len(store.reads) < 3:
        await asyncio.sleep(0.01)
    store.broken = False
    assert await waiting
    await hub.close()


@on_a_loop
async def test_waiting_ends_after_its_time_limit() -> None:
    store = FakeEventStore()
    store.events["a"] = 1
    hub = hub_of(store)
    assert not await hub.wait_until_over("a", 0.05)
    await hub.close()


@on_a_loop
async def test_waiting_for_the_end_reads_no_past_events() -> None:
    store = FakeEventStore()
    store.events["a"] = 1
    hub = hub_of(store)
    waiting = asyncio.create_task(hub.wait_until_over("a", 60))
    async with asyncio.timeout(20):
        while not store.reads:
            await asyncio.sleep(0.01)
        store.over.add("a")
        assert await waiting
    assert store.reads[0] == {"a": FROM_NOW_ON}
    await hub.close()


def test_events_before_the_subscription_are_not_missed(valkey: EmbeddedValkey) -> None:
    store = FakeEventStore()
    store.events["a"] = 1

    class SlowToListen(EventHub):
        async def _listen(self) -> None:
            while not store.reads:
                await asyncio.sleep(0.01)
            store.over.add(
                "a"
            )  # after the first read and before the subscription, so that no announcement arrives
            await super()._listen()

    async def wait() -> bool:
        hub = SlowToListen(valkey.url, read=store.read, poll_seconds=60)
        try:
            return await hub.wait_until_over("a", 20)
        finally:
            await hub.close()

    assert asyncio.run(wait())
    assert len(store.reads) == 2


def test_the_subscription_to_a_hung_server_ends(tmp_path: Path) -> None:
    """The connection of a hung server stays open: jobs are polled again, and the next try finds the current
    master."""
    store = FakeEventStore()

    async def listen(server: EmbeddedValkey) -> None:
        hub = EventHub(server.url, read=store.read, poll_seconds=60, silence_seconds=0.1)
        try:
            async with asyncio.timeout(20), hub.pulses():
                while not hub.is_subscribed:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.5)  # several times silence_seconds: an answering server is kept
                assert hub.is_subscribed
                os.kill(server.pid or 0, signal.SIGSTOP)
                while hub.is_subscribed:
                    await asyncio.sleep(0.01)
        finally:
            await hub.close()

    with EmbeddedValkey(tmp_path, append_only=False) as server:
        try:
            asyncio.run(listen(server))
        finally:
            os.kill(server.pid or 0, signal.SIGCONT)
