"""The outbox of callbacks, the log of deliveries, and the circuit breakers of receivers."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

MAX_RECEIVER_LENGTH = 300


class Callback(models.Model):
    """Outbox message: one per finished round of a job, or of something else that ends, written in the
    transaction that ends the round.

    job: None where `subject` names what ended, such as run:ID (see `Job.followed_by`);
    its id is then made from subject and round, so there is one of each round.
    id: the `webhook-id`. body: fixed at the end of the round. tenant, receiver: queue of the message; empty
    in rows of older versions until the callbacks worker fills them in. next_at: due time, or the end of the
    lease of a try in progress. sending_until: end of that lease; None without a try in progress.
    """

    class State(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        GAVE_UP = "gave_up", "gave up"
        GONE = "gone", "stopped by 410"

    id = models.CharField(max_length=40, primary_key=True, editable=False)
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="callbacks", null=True)
    subject = models.CharField(max_length=80, null=True, blank=True, default=None, editable=False)
    tenant = models.ForeignKey(
        "jobs.Tenant", on_delete=models.DO_NOTHING, null=True, editable=False, related_name="+",
        db_constraint=False, db_index=False,
    )  # fmt: skip
    receiver = models.CharField(max_length=MAX_RECEIVER_LENGTH, null=True, editable=False)
    round = models.PositiveIntegerField(default=1)
    url = models.CharField(max_length=2000)
    body = models.TextField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    tries = models.PositiveIntegerField(default=0)
    next_at = models.DateTimeField(null=True, blank=True)
    sending_until = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["job", "round"], name="one_callback_per_round")]
        indexes = [
            models.Index(fields=["next_at"], name="callback_due_idx", condition=Q(state="pending")),
            models.Index(
                fields=["tenant", "receiver", "next_at"],
                name="callback_queue_idx",
                condition=Q(state="pending"),
            ),
            models.Index(
                fields=["next_at"],
                name="callback_no_queue_idx",
                condition=Q(state="pending", receiver=None),
            ),
            models.Index(
                fields=["sending_until"],
                name="callback_sending_idx",
                condition=Q(sending_until__isnull=False),
            ),
            models.Index(
                fields=["state", "-id"],
                name="callback_undelivered_idx",
                condition=Q(state__in=["gave_up", "gone"]),
            ),
        ]

    def __str__(self) -> str:
        return self.id


class CallbackTry(models.Model):
    """Delivery log: one row per request. error: empty if the receiver answered 2xx."""

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


class ReceiverCircuit(models.Model):
    """Circuit breaker of a tenant's receiver that recently did not answer; the first answer deletes the row.

    receiver: host:port. failures: tries without an answer since `failing_since`. resting_until: no try before
    this time; None: closed. rest_seconds: current pause; the next one is longer.
    """

    tenant = models.ForeignKey(
        "jobs.Tenant", on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    receiver = models.CharField(max_length=MAX_RECEIVER_LENGTH)
    failures = models.PositiveIntegerField(default=0)
    failing_since = models.DateTimeField()
    failed_at = models.DateTimeField()
    resting_until = models.DateTimeField(null=True, blank=True)
    rest_seconds = models.FloatField(default=0.0)
    last_error = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["-id"]
        verbose_name = "receiver without an answer"
        verbose_name_plural = "receivers without an answer"
        constraints = [
            models.UniqueConstraint(fields=["tenant", "receiver"], name="one_circuit_per_receiver")
        ]

    def __str__(self) -> str:
        return self.receiver
