from __future__ import annotations

from django.db import models
from django.db.models import Q


class Callback(models.Model):
    """The outbox: one message per finished round of a job, written in the finishing transaction.

    id is the `webhook-id`. body is fixed at finish: a later round has its own message.
    """

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        GAVE_UP = "gave_up", "gave up"
        GONE = "gone", "stopped by 410"

    id = models.CharField(max_length=40, primary_key=True, editable=False)
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="callbacks")
    round = models.PositiveIntegerField(default=1)
    url = models.CharField(max_length=2000)
    body = models.TextField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    tries = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["job", "round"], name="one_callback_per_round")]
        indexes = [
            models.Index(fields=["next_at"], name="callback_due_idx", condition=Q(state="pending")),
            models.Index(
                fields=["state", "-id"],
                name="callback_undelivered_idx",
                condition=Q(state__in=["gave_up", "gone"]),
            ),
        ]

    def __str__(self) -> str:
        return self.id


class CallbackTry(models.Model):
    """The delivery log: one line per request made. error: empty when the receiver answered 2xx."""

    callback = models.ForeignKey(Callback, on_delete=models.CASCADE, related_name="log")
    number = models.PositiveIntegerField()
    at = models.DateTimeField()
    status_code = models.PositiveIntegerField(null=True, blank=True)
    error = models.CharField(max_length=500, blank=True, default="")
    duration_ms = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["callback", "number"]

    def __str__(self) -> str:
        return f"{self.callback_id} #{self.number}"
