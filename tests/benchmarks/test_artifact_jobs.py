"""What files of jobs cost beside curl, as it is reported."""

from __future__ import annotations

from benchmarks.artifact_jobs import WAYS, Spent, report


def test_each_way_is_compared_with_the_same_transfers_by_curl() -> None:
    fast = {way: Spent(1.0, 2.0) for way in WAYS} | {"client, in": Spent(2.0, 4.0), "jobs": Spent(8.0, 8.0)}
    slow = {way: Spent(spent.seconds * 9, spent.cpu) for way, spent in fast.items()}
    lines = {line[:12].strip(): line for line in report([fast, slow, fast], files=10, megabytes=1024)}
    assert list(lines) == list(WAYS)
    assert "of curl" not in lines["curl, in"]
    assert lines["curl, in"].split()[-3:] == ["0.20", "CPU", "s/GB"]
    assert "50% of curl" in lines["client, in"]
    assert "100% of curl" in lines["client, out"]
    assert "50% of curl" in lines["jobs"]  # four transfers in the time of eight
    assert lines["jobs"].split()[1] == str(round(3 * 4 * 10 * 1024 / (8 + 8 * 9 + 8)))
