"""Writes the audit log of operators' actions, and the version history of models' fields.

Both are written inside the transaction of the change.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from gpus.models import AuditEntry, ConfigVersion, ModelConfig, Pool
from gpus.registry.model_fields import read_fields


def record(actor: str | None, action: str, target: str, **detail: Any) -> AuditEntry | None:
    """Write an audit entry and return it.

    actor: None for a sweep, whose actions are not recorded. action: name of the service function, verb_noun.
    target: ``kind:name``, such as ``server:flux-1``. detail: stored as JSON.
    """
    if actor is None:
        return None
    entry = new_entry(actor, action, target, **detail)
    entry.save(force_insert=True)
    return entry


def new_entry(actor: str, action: str, target: str, **detail: Any) -> AuditEntry:
    """Return an entry that its caller stores."""
    return AuditEntry(at=timezone.now(), actor=actor, action=action, target=target[:200], detail=detail)


def cli_actor() -> str:
    """The audit actor of a command-line user: ``cli:<name>``."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # in a container the user may have no name
        return f"cli:{os.getuid()}"


BEFORE_HISTORY = "unknown"
"""Actor of the first version of a model that existed before versions were recorded."""


def read_stored_fields(name: str) -> dict[str, Any] | None:
    """The model's stored fields, or None if there is no such model."""
    config = ModelConfig.objects.select_related("pool").filter(name=name).first()
    return read_fields(config, config.pool) if config else None


def record_version(
    config: ModelConfig, pool: Pool, *, before: Mapping[str, Any] | None, by: str
) -> tuple[str, ...]:
    """Write the next version of a model if fields changed. Returns the names of the changed fields.

    Called in the transaction of the change, after the rows are saved. before: the fields before; None for a
    new model. by: actor.
    """
    after = read_fields(config, pool)
    changed = tuple(name for name in after if before is None or before.get(name) != after[name])
    if not changed:
        return ()
    last = ConfigVersion.objects.filter(model=config).values_list("number", flat=True).first()
    if last is None and before is not None:
        last = _write(config, 1, before, BEFORE_HISTORY)
    _write(config, (last or 0) + 1, after, by)
    return changed


def read_pool_models(pool: Pool) -> list[tuple[ModelConfig, dict[str, Any]]]:
    """All models of a pool with their fields; read before the pool is changed."""
    return [(row, read_fields(row, pool)) for row in ModelConfig.objects.filter(pool=pool)]


def record_versions(models: list[tuple[ModelConfig, dict[str, Any]]], pool: Pool, *, by: str) -> None:
    """`record_version` for each of `read_pool_models`, because a pool's fields are also its models'
    fields."""
    for row, before in models:
        record_version(row, pool, before=before, by=by)


def _write(config: ModelConfig, number: int, fields: Mapping[str, Any], by: str) -> int:
    ConfigVersion.objects.create(
        model=config, number=number, at=timezone.now(), actor=by, fields=dict(fields)
    )
    return number
