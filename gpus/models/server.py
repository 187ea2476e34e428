from __future__ import annotations

from collections.abc import Iterable

from django.db import models

from gpus.protocol import DesiredState, ServerSpec

from .names import NameField, validate_name


class Server(models.Model):
    """A GPU machine with slots. It belongs to one pool; the pool's models share its slots."""

    name = NameField(primary_key=True)
    pool = models.ForeignKey("gpus.Pool", on_delete=models.PROTECT, related_name="servers")
    slots = models.PositiveIntegerField(default=1)
    desired = models.CharField(
        max_length=8,
        choices=[(s.value, s.value) for s in DesiredState],
        default=DesiredState.ON.value,
        help_text="on · draining: no new leases · off: no new leases, what runs is stopped and waits again.",
    )
    host = models.CharField(
        max_length=200,
        null=True,
        blank=True,
        default=None,
        help_text="Pinned: only the worker on this host drives it.",
    )
    machine = models.CharField(
        max_length=64,
        validators=[validate_name],
        null=True,
        blank=True,
        default=None,
        help_text="What it is part of: all servers of a machine are switched in one go. "
        "A pinned worker writes its machine's host name.",
    )
    headers_encrypted = models.TextField(
        blank=True,
        default="",
        editable=False,
        help_text="Secret request headers; written by services, never shown.",
    )
    ca_pem = models.TextField(
        blank=True, default="", help_text="Optional CA certificate (PEM) to trust for this server."
    )
    boot_id = models.CharField(max_length=100, blank=True, default="", editable=False)
    healthy = models.BooleanField(null=True, default=None, editable=False)
    tells_health = models.BooleanField(
        null=True,
        default=None,
        editable=False,
        help_text="No: it answers and has no health endpoint. Empty: not known yet.",
    )
    checked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_error = models.CharField(max_length=500, blank=True, default="", editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def spec(self, models: Iterable[str] | None = None) -> ServerSpec:
        """models: those it has, where the caller knows; else its placements are read (prefetch them)."""
        if models is None:
            models = (placement.model_id for placement in self.placements.all())
        return ServerSpec(
            name=self.name,
            pool=self.pool_id,
            slots=self.slots,
            models=tuple(sorted(models)),
            desired=DesiredState(self.desired),
            host=self.host,
        )


class Placement(models.Model):
    """A model that a server can run, and the URL to POST its payloads to."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="placements")
    model = models.ForeignKey("gpus.ModelConfig", on_delete=models.CASCADE, related_name="placements")
    endpoint = models.CharField(max_length=500)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["server", "model"], name="one_placement_per_server_and_model")
        ]

    def __str__(self) -> str:
        return f"{self.model_id} on {self.server_id}"
