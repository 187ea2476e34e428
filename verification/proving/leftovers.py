"""What a store holds beside objects, under every prefix: temporary files, parts, joined parts, open uploads.
It is read past the store's own listing, which shows objects only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from artifacts.keys import read_key
from artifacts.store.identity import MARKER


def left_in_folder(root: Path) -> Iterator[str]:
    """Yield the names of files that are no object. root: the folder of a local store."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).parts
        is_object = len(name) == 4 and read_key("/".join((*name[:2], name[3]))) is not None
        if not path.is_dir() and not is_object and name != (MARKER,):
            yield "/".join(name)


def left_in_bucket(client: Any, bucket: str) -> Iterator[str]:
    """Yield the keys that are no object's, and the open uploads. client: of boto3, for S3."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for one in page.get("Contents", ()):
            if read_key(one["Key"]) is None:
                yield one["Key"]
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
        yield from (f"the open upload of {one['Key']}" for one in page.get("Uploads", ()))
