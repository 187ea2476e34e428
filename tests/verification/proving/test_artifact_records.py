"""The judge of artifacts: each contradiction between clients, rows and objects is a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.verification.proving.made import JOB, order, row, rows
from verification.proving.artifact_records import ArtifactRow, StoredArtifacts, compare_artifacts
from verification.proving.files import BIG_BYTES, MOST_BYTES, PARTS_ABOVE_BYTES, SHARE, file_of, output_of

ROW = ArtifactRow("a", "artifacts/1/aa", "stored", "aa", 3)
SAVED = ArtifactRow("s", "artifacts/1/ss", "stored", "ss", 5)
ROWS = {"a": ROW, "s": SAVED}
USES = {(JOB, "a"), (JOB, "s")}
OBJECTS = {ROW.key: 3, SAVED.key: 5}
STORED = StoredArtifacts(ROWS, USES, OBJECTS)
JOBS = rows(row(output="s", output_sha256="ss"))


def kinds(**changed: Any) -> list[str]:
    orders = [order(artifact="a", sha256="aa", bytes=3), order()]
    return [one.kind for one in compare_artifacts(orders, JOBS, replace(STORED, **changed))]


def test_consistent_records_have_no_findings() -> None:
    assert kinds() == []


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"rows": {"s": SAVED}, "objects": {SAVED.key: 5}}, ["artifact_lost"]),
        ({"rows": {**ROWS, "a": replace(ROW, sha256="bb")}}, ["artifact_changed"]),
        ({"uses": {(JOB, "s")}}, ["artifact_unused"]),
        ({"rows": {"a": ROW}, "objects": {ROW.key: 3}}, ["output_lost"]),
        ({"rows": {**ROWS, "s": replace(SAVED, state="gone")}}, ["output_lost"]),
        ({"rows": {**ROWS, "s": replace(SAVED, sha256="bb")}}, ["output_changed"]),
        ({"uses": {(JOB, "a")}}, ["output_unused"]),
        ({"objects": {SAVED.key: 5}}, ["half_object"]),
        ({"objects": {**OBJECTS, ROW.key: 2}}, ["half_object"]),
        ({"objects": {**OBJECTS, "artifacts/1/cc": 1}}, ["orphan"]),
        ({"rows": {**ROWS, "b": replace(ROW, id="b", key="x", state="promised")}}, []),
        ({"damaged": [ROW.key]}, ["damaged_object"]),
        ({"leftovers": ["tmp/1", "the open upload of p/1"]}, ["leftover", "leftover"]),
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
    assert len(file_of(7, 1, is_sure=True, is_big=True) or b"") == BIG_BYTES


def test_each_attempt_saves_other_bytes() -> None:
    assert output_of("a", 9) == output_of("a", 9) != output_of("b", 9)
    assert len(output_of("a", 9)) == 9
