"""Heartbeats and telemetry of pinned workers in Redis."""

from __future__ import annotations

from gpus.leasing.store import TELEMETRY_KEPT


def test_the_last_heartbeat_is_returned_with_its_age(harness):
    assert harness.leases.heartbeats(["box"]) == {}
    harness.leases.record_heartbeat("box", {"boot_id": "one", "jobs": [["j", "a"]]})
    harness.leases.record_heartbeat("box", {"boot_id": "two"})
    found = harness.leases.heartbeats(["other", "box"])
    assert list(found) == ["box"]
    assert found["box"].report == {"boot_id": "two"}
    assert 0 <= found["box"].age_seconds < 60


def test_telemetry_is_kept_and_bounded(harness):
    for number in range(3):
        harness.leases.record_heartbeat("box", {}, {"cpus": number})
    assert [one.reading["cpus"] for one in harness.leases.telemetry("box", 60)] == [2, 1, 0]
    for number in range(TELEMETRY_KEPT):
        harness.leases.record_heartbeat("box", {}, {"cpus": number})
    assert len(harness.leases.telemetry("box", 3600)) == TELEMETRY_KEPT


def test_a_removed_server_leaves_no_heartbeat_or_telemetry(harness):
    harness.leases.record_heartbeat("box", {}, {"cpus": 1})
    harness.leases.forget_server("box")
    assert harness.leases.heartbeats(["box"]) == {}
    assert harness.leases.telemetry("box", 10) == []


def test_telemetry_covers_the_requested_time_by_redis_clock(harness):
    for number in range(3):
        harness.leases.record_heartbeat("box", {}, {"cpus": number, "at": 1e9 * number})
        harness.wait(5.0)
    assert [(one.age_seconds, one.reading["cpus"]) for one in harness.leases.telemetry("box", 10.0)] == [
        (5.0, 2),
        (10.0, 1),
    ]
    assert harness.leases.telemetry("other", 3600) == []


def test_telemetry_of_the_version_before_is_left_out(harness):
    harness.leases.record_heartbeat("box", {}, {"cpus": 1})
    harness.client.lpush(f"{harness.prefix}telemetry:box", '{"cpus":2}')
    assert [one.reading["cpus"] for one in harness.leases.telemetry("box", 60)] == [1]
