"""What the dispatcher keeps of its own work: sums that outlive the rows they count, sweeps, signs of life of
its workers, and failed sign-ins."""

from __future__ import annotations

from django.db import models


class PurgeLedger(models.Model):
    """How many jobs retention has removed, by tenant and final state: conservation stays countable."""

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE)
    state = models.CharField(max_length=10)
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "state"], name="one_line_per_tenant_and_state")
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.state}: {self.count}"


class Tally(models.Model):
    """How often something happened since the installation began; it only grows.

    model, code: of what, empty where that makes no difference.
    """

    name = models.CharField(max_length=40)
    model = models.CharField(max_length=64, blank=True, default="")
    code = models.CharField(max_length=64, blank=True, default="")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["name", "model", "code"]
        constraints = [models.UniqueConstraint(fields=["name", "model", "code"], name="one_tally_each")]

    def __str__(self) -> str:
        return f"{self.name} {self.model} {self.code}: {self.count}"


class Rollup(models.Model):
    """What came to an end in one span of time, per model and tenant: what charts and percentiles read.

    waits, runs: counts per bucket of `jobs.reports.rollups.BOUNDS_SECONDS` (one more for what is longer):
    from accepted to the first start, and from the first start to the end.
    """

    span_seconds = models.PositiveIntegerField()
    at = models.DateTimeField(help_text="Where the span begins.")
    model = models.CharField(max_length=64)
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    gpu_seconds = models.FloatField(default=0.0)
    waits = models.JSONField(default=list)
    runs = models.JSONField(default=list)

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(
                fields=["span_seconds", "at", "model", "tenant"], name="one_rollup_per_span"
            )
        ]

    def __str__(self) -> str:
        return f"{self.model} at {self.at:%Y-%m-%d %H:%M}"


class SweepRun(models.Model):
    """When a sweep last ran to its end; written every few seconds at most.

    looked, repaired: sums over the runs since the row was written before. One line is no sweep: how far
    the sums in `Rollup` go, in its note.
    """

    name = models.CharField(max_length=40, primary_key=True)
    at = models.DateTimeField()
    looked = models.PositiveIntegerField(default=0)
    repaired = models.PositiveIntegerField(default=0)
    note = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class WorkerSign(models.Model):
    """A sign of life of one GPU worker process, written every two seconds while it holds leases.

    Redis alone can't tell a dead worker from one that Redis does not reach; this row can. The name is unique
    to the process, so that a restart is another worker.

    cut_off: attempts that it holds and could not renew lately.
    """

    worker = models.CharField(max_length=200, primary_key=True)
    at = models.DateTimeField()
    cut_off = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ["worker"]
        indexes = [models.Index(fields=["at"], name="worker_sign_at_idx")]

    def __str__(self) -> str:
        return self.worker


class SignInFailure(models.Model):
    """Failed sign-ins of one account from one address; a success deletes the row, as does the sweep.

    address: an IPv4 address or an IPv6 network of 64 bits. account: a digest of the name as typed, since
    people type passwords there, too. count: since the last pause of `sign_in_lock_seconds`.
    """

    address = models.CharField(max_length=50)
    account = models.CharField(max_length=64, editable=False)
    count = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField()

    class Meta:
        ordering = ["-last_at"]
        constraints = [
            models.UniqueConstraint(fields=["address", "account"], name="one_sign_in_failure_each")
        ]
        indexes = [models.Index(fields=["last_at"], name="sign_in_failure_last_idx")]

    def __str__(self) -> str:
        return f"{self.address}: {self.count}"
