"""The artifacts that payloads refer to: found and checked before the transaction of a submit, locked inside
it. A payload without a reference costs a search for the bytes of the name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings

from artifacts.models import Artifact, RunUpload
from artifacts.refs import BadRef, TooManyRefs, find_refs
from artifacts.store.contract import StoreError
from artifacts.uses import GONE, MISSING, NOT_UPLOADED, find_unusable, kept_refs, lock_for_use
from foundation.json_paths import pointer
from jobs.domain.errors import (
    ArtifactMissing,
    ArtifactRefInvalid,
    ArtifactStoreOfOneHost,
    ArtifactStoreUnavailable,
    Refused,
    TooManyArtifacts,
)
from jobs.ports import Ports
from jobs.reports.store_hosts import store_hosts

_POINTER = "/payload"


def require_one_host(ports: Ports, *, pointer: str | None = None) -> None:
    """Raise ArtifactStoreOfOneHost if processes of several hosts, of which this process is one, use a folder
    that only one of them has."""
    is_shared = ports.artifact_store.is_shared
    hosts = () if is_shared else store_hosts(ports.clock.now(), also_here=True)
    if len(hosts) > 1:
        raise ArtifactStoreOfOneHost(len(hosts), pointer=pointer)


def require_host_of_files(tenant_id: int, ports: Ports) -> None:
    """Raise ArtifactStoreOfOneHost where `require_one_host` does, and ArtifactStoreUnavailable where
    `require_own_store` does, if the tenant has files: what an erasure removes in this process may be in
    another host's folder."""
    has_rows = Artifact.objects.filter(tenant_id=tenant_id, removed_at=None).exists()
    if has_rows or RunUpload.objects.filter(tenant_id=tenant_id).exists():
        require_one_host(ports)
        require_own_store(ports)


def require_own_store(ports: Ports) -> None:
    """Raise ArtifactStoreUnavailable if the folder of this process is not the store of the database."""
    try:
        ports.artifact_store.require_own()
    except StoreError as error:
        raise ArtifactStoreUnavailable(str(error)) from None


_WHY = {
    MISSING: "There is no artifact {id}, or it is not yours.",
    NOT_UPLOADED: "The upload of the artifact {id} is not complete.",
    GONE: "The artifact {id} was removed. Upload it again.",
}


def refs_in(payload: Any) -> Mapping[str, tuple[str | int, ...]]:
    """Return the ids of the artifacts that a payload refers to, each with its place. Raises
    ArtifactRefInvalid, TooManyArtifacts."""
    try:
        return find_refs(payload, settings.DISPATCHER.max_artifact_refs)
    except BadRef as bad:
        raise ArtifactRefInvalid(str(bad), pointer=_POINTER + pointer(bad.path)) from None
    except TooManyRefs as many:
        raise TooManyArtifacts(
            f"A payload may have {many.most} references to artifacts (DISPATCHER_MAX_ARTIFACT_REFS).",
            pointer=_POINTER,
        ) from None


def checked_refs(payload: Any, text: bytes, tenant_id: int, now: datetime, ports: Ports) -> tuple[str, ...]:
    """Return the ids of the artifacts that a payload refers to, all of them stored.

    text: the payload as JSON. Raises ArtifactMissing, ArtifactRefInvalid, TooManyArtifacts,
    ArtifactStoreUnavailable, ArtifactStoreOfOneHost.
    """
    found = refs_in(payload)
    if not found:
        return ()
    unusable = _unusable(found, tenant_id, now, ports, _POINTER)
    if NOT_UPLOADED in unusable.values():
        require_one_host(ports, pointer=_POINTER)  # else the bytes may be in another host's folder
    for artifact_id, reason in unusable.items():
        raise ArtifactMissing(
            _WHY[reason].format(id=artifact_id), pointer=_POINTER + pointer(found[artifact_id])
        )
    return tuple(found)


def confirm_uploads(value: Any, tenant_id: int, now: datetime, ports: Ports, pointer: str) -> None:
    """Note which artifacts that a value refers to have been uploaded, so that a use can keep them. Those that
    are not there are no error. pointer: of the value. Raises ArtifactStoreUnavailable."""
    if found := kept_refs(value):
        _unusable(found, tenant_id, now, ports, pointer)


def _unusable(
    artifact_ids: Collection[str], tenant_id: int, now: datetime, ports: Ports, pointer: str
) -> Mapping[str, str]:
    """Do `find_unusable`. Raises ArtifactStoreUnavailable."""
    try:
        return find_unusable(tenant_id, artifact_ids, ports.artifact_store, now)
    except StoreError as error:
        raise ArtifactStoreUnavailable(
            f"It is unknown whether an upload is complete. {error}", pointer=pointer, retry_after_seconds=5.0
        ) from None


def refusals_of_removed(
    wanted: Iterable[tuple[int, tuple[str, ...]]],
) -> dict[int, Refused]:
    """Lock the artifacts of new jobs inside their transaction; return why some can't be stored, by index.

    wanted: index and artifacts of each job that refers to some.
    """
    by_index = dict(wanted)
    there = lock_for_use(one for ids in by_index.values() for one in ids)
    refused: dict[int, Refused] = {}
    for index, ids in by_index.items():
        for artifact_id in ids:
            if artifact_id not in there:
                refused[index] = ArtifactMissing(_WHY[GONE].format(id=artifact_id), pointer=_POINTER)
                break
    return refused
