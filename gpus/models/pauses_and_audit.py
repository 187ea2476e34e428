"""Models of the audit log and of pauses."""

from __future__ import annotations

from typing import Any

from django.db import models


class AppendOnly(models.QuerySet["AuditEntry"]):
    """A query set that refuses changes and deletions; database triggers refuse the rest
    (`gpus.migrations._append_only`)."""

    def update(self, **_: Any) -> int:
        raise TypeError("an audit entry is never changed")

    def bulk_update(self, *_: Any, **__: Any) -> int:
        raise TypeError("an audit entry is never changed")

    def bulk_create(self, objs: Any, *_: Any, **options: Any) -> Any:
        if options.get("update_conflicts"):
            raise TypeError("an audit entry is never changed")
        return super().bulk_create(objs, *_, **options)

    def update_or_create(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an audit entry is never changed")

    def delete(self) -> Any:
        raise TypeError("an audit entry is never deleted")

    def _raw_delete(self, using: str | None) -> int:
        raise TypeError("an audit entry is never deleted")


class AuditEntry(models.Model):
    """One entry of the audit log, written in the transaction of the change; never changed or deleted.

    actor: ``key:<prefix>``, ``user:<name>`` or ``cli:<name>``. action: verb_noun. target: ``kind:name``.
    """

    at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=60)
    target = models.CharField(max_length=200)
    detail = models.JSONField(default=dict, blank=True)

    objects = models.Manager.from_queryset(AppendOnly)()

    class Meta:
        ordering = ["-id"]
        base_manager_name = "objects"
        verbose_name = "audit entry"
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["target", "-id"], name="audit_target_idx"),
            models.Index(fields=["actor", "-id"], name="audit_actor_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"

    def save(self, *args: Any, **options: Any) -> None:
        if not self._state.adding:
            raise TypeError("an audit entry is never changed")
        # without force_insert Django would overwrite an entry with the same key
        super().save(*args, **{**options, "force_insert": True})

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        raise TypeError("an audit entry is never deleted")


class Pause(models.Model):
    """A pause of a model, a tenant or the system: running jobs finish, submitted jobs wait.

    name: of the model; the tenant's id as in the lease layer; empty for the system.
    """

    class Kind(models.TextChoices):
        SYSTEM = "system"
        MODEL = "model"
        TENANT = "tenant"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    name = models.CharField(max_length=64, blank=True, default="")
    since = models.DateTimeField()
    actor = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["kind", "name"]
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="one_pause_each")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()
