"""Records of the dispatcher's own work: sums that outlive the rows they count, runs of sweeps, heartbeats of
workers, and failed sign-ins."""

from __future__ import annotations

from django.db import models


class PurgeLedger(models.Model):
    """Number of jobs deleted by retention, by tenant and final state, so that the total of accepted jobs
    stays verifiable."""

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
    """A counter since the installation (`jobs.reports.counters`). model, code: labels; empty if unused."""

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
    """Sums of the jobs that ended in one span of time, per model and tenant, for charts and percentiles.

    waits, runs: histograms of the seconds from submit to the first start, and from the first start to the
    end; counts per bucket of `jobs.reports.rollups.BOUNDS_SECONDS`, with one more bucket for longer times.
    """

    span_seconds = models.PositiveIntegerField()
    at = models.DateTimeField(help_text="Start of the span.")
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


class TagUsage(models.Model):
    """Ends and GPU-seconds of a tenant's jobs with one tag in a UTC day; a job counts for each of its tags.

    tag: empty for the tags beyond `DISPATCHER_USAGE_TAGS` of the tenant and day.
    """

    day = models.DateField()
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE)
    tag = models.CharField(max_length=64, blank=True)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    gpu_seconds = models.FloatField(default=0.0)

    class Meta:
        ordering = ["-day", "tag"]
        constraints = [models.UniqueConstraint(fields=["tenant", "day", "tag"], name="one_usage_per_tag")]

    def __str__(self) -> str:
        return f"{self.tag or 'other tags'} on {self.day}"


class SweepRun(models.Model):
    """Last completed run of a sweep; written at most every few seconds.

    looked, repaired: sums over the runs since the previous write. Two rows are no sweeps: the cursor of the
    rollups, whose note is an event id, and the row of `jobs.sweeps.absences`, whose note is the times at
    which the database was not in use.
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
    """Heartbeat of one GPU worker process in the database, written every 2 s while it holds leases.

    It distinguishes a dead worker from one that can't reach Redis. worker: unique per process, so a restarted
    process is another worker. cut_off: ids of attempts that it holds but recently could not renew.
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
    """Failed sign-ins of one account from one address; deleted by a successful sign-in or the sweep
    `retention`.

    address: an IPv4 address or a /64 IPv6 network. account: digest of the typed name, because users sometimes
    type a password there. count: failures since the last pause of `sign_in_lock_seconds`.
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
