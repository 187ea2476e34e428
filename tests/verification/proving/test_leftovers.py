"""What is left in a store beside objects is found under each of its prefixes."""

from __future__ import annotations

from pathlib import Path

from artifacts.keys import ObjectKey
from foundation.ids import new_id
from verification.proving.leftovers import left_in_bucket, left_in_folder

OBJECT = f"a/7/ab/{'ab' * 32}"


def test_a_folder_has_files_that_are_no_objects(tmp_path: Path) -> None:
    left = ["a/7/ab/x", f"a/7/{'ab' * 32}", f"parts/{new_id(0.0)}/1", "tmp/2"]
    for name in (OBJECT, *left):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert list(left_in_folder(tmp_path)) == sorted(left)


class Bucket:
    """A client that lists some keys and open uploads."""

    def get_paginator(self, name: str) -> Bucket:
        self.listed = name
        return self

    def paginate(self, **_: str) -> list[dict[str, list[dict[str, str]]]]:
        key = str(ObjectKey(7, "ab" * 32))
        if self.listed == "list_multipart_uploads":
            return [{"Uploads": [{"Key": key}]}, {}]
        return [{"Contents": [{"Key": key}, {"Key": "p/7/joined"}]}, {"Contents": [{"Key": "x"}]}]


def test_a_bucket_has_joined_parts_and_open_uploads() -> None:
    found = list(left_in_bucket(Bucket(), "any"))
    assert found == ["p/7/joined", "x", f"the open upload of {ObjectKey(7, 'ab' * 32)}"]
