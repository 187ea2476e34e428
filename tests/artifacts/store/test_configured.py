"""DISPATCHER_ARTIFACT_STORE: what it may be, and what is wrong with another value."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from artifacts.checks import check_store
from artifacts.store import s3
from artifacts.store.configured import ProcessStore, read_place
from artifacts.store.local import LocalStore
from artifacts.store.s3 import NoBoto, S3Place, S3Store
from foundation.program import ROOT


def test_places_are_read() -> None:
    assert read_place("") == (None, False)
    assert read_place("/srv/a") == (Path("/srv/a"), False)
    assert read_place("file:///mnt/a?shared=1") == (Path("/mnt/a"), True)
    assert read_place("s3://films") == S3Place("films")
    assert read_place("s3://films/a/b/?endpoint=http://box:9000&region=eu-1&public_endpoint=https://x") == (
        S3Place("films", "a/b/", "http://box:9000", "https://x", "eu-1")
    )


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("artifacts", "must be absolute"),
        ("ftp://box/a", "not ftp://"),
        ("/srv?share=1", "one option, [?]shared=1"),
        ("s3://", "must name a bucket"),
        ("s3://key:secret@films", "AWS_ACCESS_KEY_ID"),
        ("s3://films?end=x", "no option end"),
        ("s3://films?endpoint", "can't be read"),
    ],
)
def test_a_bad_place_is_refused_with_what_is_wrong(
    place: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ImproperlyConfigured, match=says) as refused:
        read_place(place)
    assert "secret" not in str(refused.value)
    monkeypatch.setattr(settings, "DISPATCHER", replace(settings.DISPATCHER, artifact_store=place))
    assert [error.id for error in check_store(None)] == ["artifacts.E001"]
    with pytest.raises(
        ImproperlyConfigured, match=says
    ):  # processes that run no checks, such as those of `up`
        apps.get_app_config("artifacts").ready()


@pytest.mark.parametrize("part", [["dispatcher_project.web"], ["dispatcher_project.cli", "gpu_worker"]])
def test_a_process_with_a_bad_place_ends_with_one_line(part: list[str]) -> None:
    environment = {**os.environ, "DISPATCHER_ARTIFACT_STORE": "ftp://box/a"}
    ended = subprocess.run(
        [sys.executable, "-m", *part],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode
    assert "not ftp://" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_s3_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NoBoto

    monkeypatch.setattr("artifacts.checks.require_boto", missing)
    monkeypatch.setattr(s3, "require_boto", missing)
    monkeypatch.setattr(settings, "DISPATCHER", replace(settings.DISPATCHER, artifact_store="s3://films"))
    assert "gpu-dispatcher[s3]" in check_store(None)[0].msg


def test_a_process_has_one_store_until_its_settings_change(monkeypatch: pytest.MonkeyPatch) -> None:
    of_process = ProcessStore()
    now = lambda: datetime.now(UTC)  # noqa: E731
    first = of_process.get(now)
    assert isinstance(first, LocalStore)
    assert of_process.get(now) is first
    assert first.root == settings.ARTIFACT_FOLDER
    monkeypatch.setattr(settings, "DISPATCHER", replace(settings.DISPATCHER, artifact_store="s3://films"))
    assert isinstance(of_process.get(now), S3Store)
