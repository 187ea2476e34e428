"""The record of what operators did, and of what the fields of a model were.

Written inside the transaction of the deed: neither stands alone.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from gpus.models import AuditEntry, ConfigVersion, ModelConfig, Pool
from gpus.registry.model_fields import read_fields


def record(actor: str | None, action: str, target: str, **detail: Any) -> None:
    """actor: None for a sweep, whose deeds are not recorded. action: verb_noun, as the service is called.
    target: ``kind:name``, as in ``server:flux-1``."""
    if actor is None:
        return
    AuditEntry.objects.create(
        at=timezone.now(), actor=actor, action=action, target=target[:200], detail=detail
    )


def cli_actor() -> str:
    """Who sits at the command line: ``cli:<name>``."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container may know no name for its user
        return f"cli:{os.getuid()}"


BEFORE_HISTORY = "unknown"
"""The actor of a first version that stands for a model nobody kept a history of."""


def fields_before(name: str) -> dict[str, Any] | None:
    """The fields as they are stored now; None: there is no such model."""
    config = ModelConfig.objects.select_related("pool").filter(name=name).first()
    return read_fields(config, config.pool) if config else None


def note_change(
    config: ModelConfig, pool: Pool, *, before: Mapping[str, Any] | None, by: str
) -> tuple[str, ...]:
    """The names of the fields that changed; if any did, the next version is written. In the transaction of
    the change, after the rows are saved. before: None for a model that is new."""
    after = read_fields(config, pool)
    changed = tuple(name for name in after if before is None or before.get(name) != after[name])
    if not changed:
        return ()
    last = ConfigVersion.objects.filter(model=config).values_list("number", flat=True).first()
    if last is None and before is not None:
        last = _write(config, 1, before, BEFORE_HISTORY)
    _write(config, (last or 0) + 1, after, by)
    return changed


def models_before(pool: Pool) -> list[tuple[ModelConfig, dict[str, Any]]]:
    """All models of a pool with their fields, before the pool is changed."""
    return [(row, read_fields(row, pool)) for row in ModelConfig.objects.filter(pool=pool)]


def note_changes(models: list[tuple[ModelConfig, dict[str, Any]]], pool: Pool, *, by: str) -> None:
    """`note_change` for each of `models_before`: a pool's fields are its models' fields too."""
    for row, before in models:
        note_change(row, pool, before=before, by=by)


def _write(config: ModelConfig, number: int, fields: Mapping[str, Any], by: str) -> int:
    ConfigVersion.objects.create(
        model=config, number=number, at=timezone.now(), actor=by, fields=dict(fields)
    )
    return number
