"""Models of pools, servers, placements of models on servers, and quarantined slots."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from foundation.names import NameField, validate_name
from gpus.models.model_config import MAX_SECONDS
from gpus.protocol import DesiredState, PoolSpec, QueueAlgorithm, ServerSpec


class Pool(models.Model):
    """A group of servers and models: the models share the servers' slots and one queue."""

    name = NameField(primary_key=True)
    fleet = NameField(default="main", help_text="Redis hash tag: the unit of sharding.")
    algorithm = models.CharField(
        max_length=8,
        choices=[(a.value, a.value) for a in QueueAlgorithm],
        default=QueueAlgorithm.FAIR.value,
        help_text="fair: tenants take turns by GPU-seconds. fifo: one queue for all tenants. "
        "Takes effect at once.",
    )
    affinity_patience_seconds = models.FloatField(
        default=30.0,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_SECONDS)],
        help_text="Longest delay of the first job in the queue in favour of jobs of a loaded model, seconds.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> PoolSpec:
        return PoolSpec(self.name, QueueAlgorithm(self.algorithm), self.affinity_patience_seconds)


class QuarantinedSlot(models.Model):
    """A slot whose GPU may still be busy with an attempt out of control.

    It is freed only by a proof: a probe (`boot_id` changed, the attempt is not in `jobs`, too few
    `active_jobs`), the end of the model's run limit, or an operator. The row stays as a record.
    """

    server = models.ForeignKey("gpus.Server", on_delete=models.CASCADE, related_name="quarantined")
    slot = models.PositiveIntegerField()
    attempt_id = models.CharField(max_length=26, blank=True, default="")
    follower_attempt_id = models.CharField(
        max_length=26,
        blank=True,
        default="",
        db_default="",
        help_text="Prefetched attempt of the slot; it may have begun after the attempt.",
    )
    job_id = models.CharField(max_length=26, blank=True, default="")
    model = models.CharField(max_length=64, blank=True, default="")
    reason = models.CharField(max_length=200)
    boot_id = models.CharField(
        max_length=100,
        blank=True,
        default="",
        help_text="The server's boot id at the start of the quarantine.",
    )
    since = models.DateTimeField()
    until = models.DateTimeField(help_text="End of the model's run limit: no run can last longer.")
    probed_at = models.DateTimeField(null=True, blank=True)
    refused_at = models.DateTimeField(
        null=True, blank=True, help_text="Time at which the server's address refused a connection."
    )
    refused_url = models.TextField(
        null=True,
        blank=True,
        editable=False,
        help_text="URL of the refused connection; an answer at another URL is no proof of a restart.",
    )
    freed_at = models.DateTimeField(null=True, blank=True)
    evidence = models.CharField(
        max_length=200, blank=True, default="", help_text="Proof that the slot was free."
    )

    class Meta:
        ordering = ["-since"]
        constraints = [
            models.UniqueConstraint(
                fields=["server", "slot", "attempt_id"],
                condition=Q(freed_at__isnull=True),
                name="one_open_quarantine_per_suspect",
            )
        ]
        indexes = [models.Index(fields=["freed_at", "probed_at"], name="quarantine_open_idx")]

    def __str__(self) -> str:
        return f"{self.server_id}/{self.slot}: {self.reason}"


class Server(models.Model):
    """A GPU server with slots. It belongs to one pool, whose models share its slots."""

    name = NameField(primary_key=True)
    pool = models.ForeignKey("gpus.Pool", on_delete=models.PROTECT, related_name="servers")
    slots = models.PositiveIntegerField(default=1)
    desired = models.CharField(
        max_length=8,
        choices=[(s.value, s.value) for s in DesiredState],
        default=DesiredState.ON.value,
        help_text="on · draining: no new leases · off: no new leases, running jobs are stopped and "
        "queued again.",
    )
    host = models.CharField(
        max_length=200,
        null=True,
        blank=True,
        default=None,
        help_text="Pinned server: only the worker on this host runs its jobs.",
    )
    machine = models.CharField(
        max_length=64,
        validators=[validate_name],
        null=True,
        blank=True,
        default=None,
        help_text="Computer of the server: all servers of a machine can be switched together. "
        "A pinned worker sets its host name.",
    )
    headers_encrypted = models.TextField(
        blank=True,
        default="",
        editable=False,
        help_text="Secret request headers, encrypted; never shown.",
    )
    ca_pem = models.TextField(
        blank=True, default="", help_text="Optional CA certificate (PEM) to trust for this server."
    )
    upload_salt = models.CharField(
        max_length=16,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Part of the key with which a Cog container uploads its files.",
    )
    boot_id = models.CharField(max_length=100, blank=True, default="", editable=False)
    healthy = models.BooleanField(null=True, default=None, editable=False)
    tells_health = models.BooleanField(
        null=True,
        default=None,
        editable=False,
        help_text="No: the server answers without a health endpoint. Empty: not known yet.",
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
        """The server for the lease layer. models: placed there; None: reads the placements (prefetch
        them)."""
        if models is None:
            models = (one.model_id for one in self.placements.all() if not one.is_too_large(self))
        return ServerSpec(
            name=self.name,
            pool=self.pool_id,
            slots=self.slots,
            models=tuple(sorted(models)),
            desired=DesiredState(self.desired),
            host=self.host,
            registered_us=int(self.created_at.timestamp() * 1_000_000),
        )


class Placement(models.Model):
    """A model on a server, with the URL for its payloads."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="placements")
    model = models.ForeignKey("gpus.ModelConfig", on_delete=models.CASCADE, related_name="placements")
    endpoint = models.CharField(max_length=500)
    too_large = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Reason why the model can never run on the server: it needs more memory than the GPU has.",
    )
    too_large_boot = models.CharField(max_length=100, blank=True, default="", db_default="", editable=False)
    """Boot id of the server process that found it; the next one may have more memory."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["server", "model"], name="one_placement_per_server_and_model")
        ]

    def __str__(self) -> str:
        return f"{self.model_id} on {self.server_id}"

    def is_too_large(self, server: Server) -> bool:
        return bool(self.too_large) and self.too_large_boot == server.boot_id


TOO_LARGE = ~models.Q(too_large="") & models.Q(too_large_boot=models.F("server__boot_id"))
"""`Placement.is_too_large` as a query condition."""
