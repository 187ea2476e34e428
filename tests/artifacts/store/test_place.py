"""Values of DISPATCHER_ARTIFACT_STORE, and the errors of invalid ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from artifacts.store.place import S3Place, read_place
from dispatcher_project.settings.dispatcher import DispatcherSettings
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
def test_a_bad_place_is_refused_with_what_is_wrong(place: str, says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=says) as refused:
        read_place(place)
    assert "secret" not in str(refused.value)
    with pytest.raises(ImproperlyConfigured, match=says):
        DispatcherSettings(artifact_store=place)


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
