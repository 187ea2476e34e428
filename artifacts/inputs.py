"""Signed URLs of the artifacts that a job uses, for the GPU server that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from artifacts.models import Artifact
from artifacts.store.contract import Store, StoreUnavailable
from artifacts.store.presence import find_expected

_AT_ONCE = 8
"""Questions to the store at once."""


class ObjectGone(Exception):
    """The store has no object of an artifact any more. artifact_id: of the artifact."""

    def __init__(self, artifact_id: str) -> None:
        super().__init__(artifact_id)
        self.artifact_id = artifact_id


def input_urls(job_id: str, store: Store, seconds: float) -> Mapping[str, str]:
    """Return a signed GET URL of each artifact that a job uses, by id.

    seconds: how long the URLs live. The store is asked for each object first. Raises ObjectGone, and
    StoreError also if the store has no object at all: then it is another one than before, such as a folder
    that is not mounted.
    """
    rows = [row for row in Artifact.objects.filter(uses__job=job_id) if row.state == Artifact.State.STORED]
    if len(rows) < 2:
        found = [find_expected(store, row.key) for row in rows]
    else:
        with ThreadPoolExecutor(min(_AT_ONCE, len(rows))) as threads:
            found = list(threads.map(lambda row: find_expected(store, row.key), rows))
    for row, stored in zip(rows, found, strict=True):
        if stored is None and next(iter(store.objects()), None) is None:
            raise StoreUnavailable("The store is empty. Is its folder mounted, or its bucket the right one?")
        if stored is None or stored.bytes != row.bytes:
            raise ObjectGone(row.pk)
    return {
        row.pk: store.sign_get(row.key, seconds, content_type=row.content_type, name=row.name).url
        for row in rows
    }
