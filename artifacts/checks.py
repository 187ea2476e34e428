"""Checks of the settings at start (`manage.py check`): a store that can't be made stops the process."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error

from artifacts.store.place import S3Place, read_place
from artifacts.store.s3 import NoBoto, require_boto


def check_store(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Check that S3 has its package."""
    try:
        if isinstance(read_place(settings.DISPATCHER.artifact_store), S3Place):
            require_boto()
    except NoBoto as error:
        return [Error(str(error), id="artifacts.E001")]
    return []
