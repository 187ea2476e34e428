"""The store of a process is that of its settings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from artifacts.checks import check_store
from artifacts.store import s3
from artifacts.store.configured import ProcessStore
from artifacts.store.local import LocalStore
from artifacts.store.s3 import NoBoto, S3Store


def test_s3_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    def missing() -> None:
        raise NoBoto

    monkeypatch.setattr("artifacts.checks.require_boto", missing)
    monkeypatch.setattr(s3, "require_boto", missing)
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_store="s3://films")
    assert "gpu-dispatcher[s3]" in check_store(None)[0].msg


@pytest.mark.parametrize(
    ("store", "most", "found"),
    [
        ("s3://films", 5 * 1024**3, []),
        ("s3://films", 5 * 1024**3 + 1, ["artifacts.W002"]),
        ("s3://films", 5 * 1024**4, ["artifacts.W002"]),
        ("s3://films", 5 * 1024**4 + 1, ["artifacts.E002"]),
        ("", 10**15, []),
    ],
)
def test_sizes_that_s3_does_not_take_are_found_at_start(
    monkeypatch: pytest.MonkeyPatch, settings: Any, store: str, most: int, found: list[str]
) -> None:
    monkeypatch.setattr("artifacts.checks.require_boto", lambda: None)
    limits = replace(settings.DISPATCHER, artifact_store=store, max_artifact_bytes=most)
    settings.DISPATCHER = limits
    messages = check_store(None)
    assert [one.id for one in messages] == found
    assert all(f"DISPATCHER_MAX_ARTIFACT_BYTES is {most}" in one.msg for one in messages)


def test_parts_that_s3_does_not_take_are_found_at_start(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr("artifacts.checks.require_boto", lambda: None)
    small = replace(settings.DISPATCHER, artifact_part_bytes=5 * 1024**2 - 1)
    settings.DISPATCHER = replace(small, artifact_store="s3://films")
    [error] = check_store(None)
    assert (error.id, "DISPATCHER_ARTIFACT_PART_BYTES is 5242879" in error.msg) == ("artifacts.E003", True)
    settings.DISPATCHER = small
    assert check_store(None) == []


def test_a_process_has_one_store_until_its_settings_change(settings: Any) -> None:
    of_process = ProcessStore()
    now = lambda: datetime.now(UTC)  # noqa: E731
    first = of_process.get(now)
    assert isinstance(first, LocalStore)
    assert of_process.get(now) is first
    assert first.root == settings.ARTIFACT_FOLDER
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_store="s3://films")
    assert isinstance(of_process.get(now), S3Store)
