from __future__ import annotations

from collections.abc import Iterable

from django.db import models

from foundation.names import NameField, validate_name
from gpus.protocol import DesiredState, ServerSpec


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
            models = (one.model_id for one in self.placements.all() if not one.is_too_large(self))
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
    too_large = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Why the model can never run there: it needs more memory than the GPU has.",
    )
    too_large_boot = models.CharField(max_length=100, blank=True, default="", db_default="", editable=False)
    """The server's process that found it (`Server.boot_id`): the next one may have more memory."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["server", "model"], name="one_placement_per_server_and_model")
        ]

    def __str__(self) -> str:
        return f"{self.model_id} on {self.server_id}"

    def is_too_large(self, server: Server) -> bool:
        return bool(self.too_large) and self.too_large_boot == server.boot_id


TOO_LARGE = ~models.Q(too_large="") & models.Q(too_large_boot=models.F("server__boot_id"))
"""Of a placement: `is_too_large`, as a condition."""
