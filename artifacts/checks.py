"""Checks of the settings at start (`manage.py check`): a store that can't be made, or could not take what the
settings allow, stops the process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning

from artifacts.store.configured import make_store
from artifacts.store.contract import StoreError
from artifacts.store.identity import AnotherFolder
from artifacts.store.local import LocalStore
from artifacts.store.place import S3Place, read_place
from artifacts.store.s3 import MAX_OBJECT_BYTES, MAX_PUT_BYTES, MIN_PART_BYTES, NoBoto, require_boto


def check_folder(app_configs: Any, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Check with a database (`manage.py check --database default`, `migrate`) that a folder is its store."""
    if not databases or isinstance(read_place(settings.DISPATCHER.artifact_store), S3Place):
        return []
    store = make_store(lambda: datetime.now(UTC))
    assert isinstance(store, LocalStore)
    try:
        store.look()
    except AnotherFolder as error:
        hint = "`doctor` says how to declare the right folder. Several hosts need s3://BUCKET."
        return [Warning(f"DISPATCHER_ARTIFACT_STORE: {error}", hint=hint, id="artifacts.W003")]
    except StoreError:  # before the migration, or without the folder's rights: `doctor` says more
        pass
    return []


def check_store(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check that S3 has its package, and takes artifacts of the largest size."""
    if not isinstance(read_place(settings.DISPATCHER.artifact_store), S3Place):
        return []
    try:
        require_boto()
    except NoBoto as error:
        return [Error(str(error), id="artifacts.E001")]
    least = settings.DISPATCHER.artifact_part_bytes
    if least < MIN_PART_BYTES:
        text = f"DISPATCHER_ARTIFACT_PART_BYTES is {least}; S3 takes parts of {MIN_PART_BYTES} bytes or more."
        return [Error(text, hint=f"Set it to {MIN_PART_BYTES} or more.", id="artifacts.E003")]
    most = settings.DISPATCHER.max_artifact_bytes
    if most > MAX_OBJECT_BYTES:
        text = f"DISPATCHER_MAX_ARTIFACT_BYTES is {most}; S3 takes objects of up to {MAX_OBJECT_BYTES} bytes."
        return [Error(text, hint=f"Set it to {MAX_OBJECT_BYTES} or less.", id="artifacts.E002")]
    if most > MAX_PUT_BYTES:
        text = (
            f"DISPATCHER_MAX_ARTIFACT_BYTES is {most}; GPU servers send an output in one PUT, of which S3 "
            f"takes up to {MAX_PUT_BYTES} bytes."
        )
        hint = "Larger uploads of clients are sent in parts; larger outputs of GPU servers are refused."
        return [Warning(text, hint=hint, id="artifacts.W002")]
    return []
