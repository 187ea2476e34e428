"""A day of telemetry in Redis: summaries of five minutes, bounded, that outlive the worker's process."""

from __future__ import annotations

from typing import Any

from gpus.leasing.keys import Keys
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import SUMMARY_SECONDS, Spread
from tests.gpus.leasing.lease_harness import LeaseHarness

DAY = 86_400.0


def send(
    harness: LeaseHarness, *, leases: RedisLeases | None = None, warm: tuple[str, ...] = (), **gpu: float
) -> None:
    reading = {"warm": list(warm), "cpu_percent": 10.0, "gpu": gpu}
    (leases or harness.leases).record_heartbeat("box", {}, reading)


def to_next_summary(harness: LeaseHarness) -> None:
    harness.wait(SUMMARY_SECONDS - harness.now_ms / 1000 % SUMMARY_SECONDS)


def test_the_readings_of_five_minutes_become_one_summary(harness: LeaseHarness) -> None:
    to_next_summary(harness)
    for utilisation in (10.0, 90.0, 20.0):
        send(harness, utilisation=utilisation, power=250)
        harness.wait(5)
    [found] = harness.leases.telemetry_summaries("box", DAY)
    assert (found.age_seconds, found.readings) == (15.0, 3)
    assert found.measures == {
        "utilisation": Spread(40.0, 10.0, 90.0),
        "power": Spread(250.0, 250.0, 250.0),
        "cpu_percent": Spread(10.0, 10.0, 10.0),
    }
    to_next_summary(harness)
    send(harness, temperature=61)
    latest, before = harness.leases.telemetry_summaries("box", DAY)
    assert (latest.age_seconds, set(latest.measures)) == (0.0, {"temperature", "cpu_percent"})
    assert (before.age_seconds, before.readings) == (300.0, 3)


def test_a_model_that_the_reading_before_did_not_name_was_loaded(harness: LeaseHarness) -> None:
    for warm in (("a",), ("a", "ab"), ("ab",), ("a", "ab"), ("a", "ab"), ()):
        send(harness, warm=warm)
    [found] = harness.leases.telemetry_summaries("box", DAY)
    assert found.loads == {"a": 1, "ab": 1}
    to_next_summary(harness)
    send(harness, warm=("ab",))
    assert [one.loads for one in harness.leases.telemetry_summaries("box", DAY)] == [
        {"ab": 1},
        {"a": 1, "ab": 1},
    ]


def test_a_day_is_kept_and_no_more(harness: LeaseHarness) -> None:
    to_next_summary(harness)
    for _ in range(300):
        send(harness, utilisation=50.0)
        harness.wait(SUMMARY_SECONDS)
    assert harness.client.llen(Keys(harness.leases.fleet).summaries("box")) == 288
    assert len(harness.leases.telemetry_summaries("box", DAY)) == 288
    assert len(harness.leases.telemetry_summaries("box", 3600.0)) == 12


def test_a_restarted_worker_goes_on_with_the_summary(harness: LeaseHarness) -> None:
    to_next_summary(harness)
    send(harness, utilisation=0.0)
    restarted = RedisLeases(harness.client, harness.leases.fleet, now_ms=lambda: harness.now_ms)
    send(harness, leases=restarted, utilisation=100.0)
    [found] = restarted.telemetry_summaries("box", DAY)
    assert (found.readings, found.measures["utilisation"]) == (2, Spread(50.0, 0.0, 100.0))


def test_summaries_survive_a_rebuild_of_the_index_and_end_with_their_server(harness: LeaseHarness) -> None:
    send(harness, utilisation=1.0)
    harness.open()
    assert len(harness.leases.telemetry_summaries("box", DAY)) == 1
    harness.leases.forget_server("box")
    assert harness.leases.telemetry_summaries("box", DAY) == []
    assert harness.client.exists(Keys(harness.leases.fleet).summaries("box")) == 0


def test_without_hours_none_is_kept(harness: LeaseHarness) -> None:
    send(harness, utilisation=1.0)
    without = RedisLeases(
        harness.client, harness.leases.fleet, now_ms=lambda: harness.now_ms, telemetry_hours=0
    )
    send(harness, leases=without, utilisation=1.0)
    assert without.telemetry_summaries("box", DAY) == []
    assert len(without.telemetry("box", 60)) == 2


def test_an_absurd_reading_takes_no_more_memory_than_a_usual_one_and_is_no_measure(
    harness: LeaseHarness,
) -> None:
    absurd: dict[str, Any] = {
        "warm": [f"m{number}" for number in range(10_000)] + ["a,b", "x" * 10_000],
        "cpu_percent": float("nan"),
        "ram_used_mb": 1e300,
        "gpu": {
            "utilisation": "much",
            "power": float("inf"),
            "temperature": 61,
            "processes": dict.fromkeys(map(str, range(10_000)), 1.0),
        },
        "more": "x" * 1_000_000,
    }
    harness.leases.record_heartbeat("box", {}, absurd)
    harness.leases.record_heartbeat("box", {}, {"warm": [], "gpu": [{"utilisation": 1.0}] * 10_000})
    [found] = harness.leases.telemetry_summaries("box", DAY)
    assert dict(found.measures) == {"temperature": Spread(61.0, 61.0, 61.0)}
    latest, before = harness.leases.telemetry("box", DAY)
    assert latest.reading == {"warm": [], "gpu_error": "its reading is no object"}
    assert (len(before.reading["warm"]), len(before.reading["gpu"]["processes"])) == (64, 64)
    for key in (Keys(harness.leases.fleet).telemetry("box"), Keys(harness.leases.fleet).summaries("box")):
        assert harness.client.memory_usage(key, samples=0) < 8192


def test_a_stored_reading_that_another_program_wrote_is_bounded_when_it_is_read(
    harness: LeaseHarness,
) -> None:
    code = "redis.call('LPUSH', KEYS[1], cmsgpack.pack(tonumber(ARGV[1]), ARGV[2]))"
    for text in (
        '{"cpus": 1e300}',
        '{"cpus": NaN}',
        "[" * 20_000,
        "no JSON",
        '{"x": "%s"}' % ("x" * 40_000),
        "7",
    ):
        harness.client.eval(code, 1, Keys(harness.leases.fleet).telemetry("box"), harness.now_ms * 1000, text)
    found = [dict(one.reading) for one in harness.leases.telemetry("box", 60)]
    assert found == [{}, {}, {}, {}, {"warm": []}]  # the longest one is left out
