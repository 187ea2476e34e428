"""The judge of artifacts: each contradiction between clients, rows and objects is a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.verification.proving.made import JOB, order
from verification.proving.artifact_records import ArtifactRow, StoredArtifacts, compare_artifacts
from verification.proving.files import MOST_BYTES, PARTS_ABOVE_BYTES, SHARE, file_of

ROW = ArtifactRow("a", "artifacts/1/aa", "stored", "aa", 3)
STORED = StoredArtifacts({"a": ROW}, {(JOB, "a")}, {ROW.key: 3})


def kinds(**changed: Any) -> list[str]:
    orders = [order(artifact="a", sha256="aa", bytes=3), order()]
    return [one.kind for one in compare_artifacts(orders, replace(STORED, **changed))]


def test_consistent_records_have_no_findings() -> None:
    assert kinds() == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"rows": {}, "objects": {}}, ["artifact_lost"]),
        ({"rows": {"a": replace(ROW, sha256="bb")}}, ["artifact_changed"]),
        ({"uses": set()}, ["artifact_unused"]),
        ({"objects": {}}, ["half_object"]),
        ({"objects": {ROW.key: 2}}, ["half_object"]),
        ({"objects": {ROW.key: 3, "artifacts/1/cc": 1}}, ["orphan"]),
        ({"rows": {"a": ROW, "b": replace(ROW, id="b", key="x", state="promised")}}, []),
    ],
)
def test_each_contradiction_is_found(changed: dict[str, Any], found: list[str]) -> None:
    assert kinds(**changed) == found


def test_some_jobs_have_a_file_that_follows_from_their_number() -> None:
    files = [file_of(number, 1) for number in range(1000)]
    assert sum(file is not None for file in files) == pytest.approx(1000 * SHARE, rel=0.3)
    assert all(0 < len(file) <= MOST_BYTES for file in files if file is not None)
    in_parts = [content for content in files if content and len(content) > PARTS_ABOVE_BYTES]
    assert 0 < len(in_parts) < sum(content is not None for content in files)
    assert file_of(7, 1) == file_of(7, 1)
