from __future__ import annotations

from typing import Any

from django.db import models


class AuditEntry(models.Model):
    """Who did what to what, when. Written in the transaction of the deed; never changed, never deleted by us.

    actor: ``key:<prefix>``, ``user:<name>`` or ``cli:<name>``. action: verb_noun. target: ``kind:name``.
    """

    at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=60)
    target = models.CharField(max_length=200)
    detail = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["-id"]
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
        super().save(*args, **options)

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        raise TypeError("an audit entry is never deleted")
