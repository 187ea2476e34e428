"""The rows of artifacts. Tenants and jobs are known by id only: no foreign key points up."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from artifacts.keys import ObjectKey


class Artifact(models.Model):
    """A file of a tenant, identified in the store by its hash.

    state: promised (its upload may come), stored (the store has all bytes), gone (no longer available;
    `removed_at` says since when the store has no object of it). bytes, sha256: as promised, and checked by
    the store. content_type: as declared, else as recognised from the first bytes. name: of the file, as the
    client calls it. made_by_job, made_by_attempt, made_by_epoch: of the run that made it; made_by_key: name
    of the client that uploaded it. upload: id of an upload in parts. expires_at: when it may be removed if
    nothing uses it. put_until: when the last URL expires that was signed to put its object; None: unknown,
    it was made by an earlier version. tombstoned_at: since when the removal is announced; a use clears it.
    """

    class State(models.TextChoices):
        PROMISED = "promised"
        STORED = "stored"
        GONE = "gone"

    id = models.CharField(max_length=26, primary_key=True, editable=False)
    tenant_id = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    bytes = models.BigIntegerField()
    content_type = models.CharField(max_length=127, blank=True, default="")
    name = models.CharField(max_length=255, blank=True, default="")
    state = models.CharField(max_length=8, choices=State.choices, default=State.PROMISED)
    made_by_job = models.CharField(max_length=26, blank=True, default="")
    made_by_attempt = models.CharField(max_length=26, blank=True, default="")
    made_by_epoch = models.PositiveIntegerField(null=True, blank=True, default=None)
    made_by_key = models.CharField(max_length=64, blank=True, default="")
    upload = models.CharField(max_length=255, blank=True, default="")
    created_at = models.DateTimeField()
    stored_at = models.DateTimeField(null=True, blank=True, default=None)
    expires_at = models.DateTimeField()
    put_until = models.DateTimeField(null=True, blank=True, default=None)
    tombstoned_at = models.DateTimeField(null=True, blank=True, default=None)
    removed_at = models.DateTimeField(null=True, blank=True, default=None)

    class Meta:
        constraints = [
            # also while the object of a gone one is being removed: a new upload would be removed with it
            models.UniqueConstraint(
                fields=["tenant_id", "sha256"], condition=Q(removed_at=None), name="one_artifact_per_content"
            ),
            models.CheckConstraint(name="artifact_has_bytes", condition=Q(bytes__gte=0)),
            models.CheckConstraint(
                name="only_gone_artifacts_are_removed", condition=Q(removed_at=None) | Q(state="gone")
            ),
        ]
        indexes = [
            models.Index(fields=["tenant_id", "-id"], name="artifact_of_tenant_idx"),
            # lists of one state, of a tenant and for operators
            models.Index(fields=["tenant_id", "state", "-id"], name="artifact_tenant_state_idx"),
            models.Index(fields=["state", "-id"], name="artifact_state_idx"),
            # sums of a tenant's bytes and promises are read from the index alone
            models.Index(
                fields=["tenant_id", "state", "bytes"],
                name="artifact_quota_idx",
                condition=Q(removed_at=None),
            ),
            models.Index(
                fields=["expires_at"],
                name="artifact_expiry_idx",
                condition=Q(tombstoned_at=None, removed_at=None),
            ),
            models.Index(
                fields=["tombstoned_at"],
                name="artifact_tombstone_idx",
                condition=Q(tombstoned_at__isnull=False, removed_at=None),
            ),
            models.Index(
                fields=["removed_at"], name="artifact_removed_idx", condition=Q(removed_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def key(self) -> ObjectKey:
        """The key of its object in the store."""
        return ObjectKey(self.tenant_id, self.sha256)


class ArtifactUse(models.Model):
    """A job or a run that refers to an artifact. An artifact with a use is not removed. job, run: ids, one of
    them empty. is_result: it is the job's whole result as JSON, which was too long for the job's row."""

    id = models.BigAutoField(primary_key=True)
    artifact = models.ForeignKey("artifacts.Artifact", on_delete=models.CASCADE, related_name="uses")
    job = models.CharField(max_length=26, blank=True, default="")
    run = models.CharField(max_length=26, blank=True, default="")
    is_result = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["artifact", "job", "run"], name="one_use_per_artifact"),
            models.CheckConstraint(
                name="use_is_of_job_or_run", condition=(Q(job="") & ~Q(run="")) | (~Q(job="") & Q(run=""))
            ),
        ]
        indexes = [
            models.Index(fields=["job"], name="artifact_use_of_job_idx"),
            models.Index(fields=["run"], name="artifact_use_of_run_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.artifact_id} {self.job or self.run}"


class RunUpload(models.Model):
    """An output that a run has saved, or that its GPU server has promised to upload. It becomes an artifact
    under this id if the attempt completes with a result that names it, and counts for its tenant before that
    (`artifacts.reservations`). artifact: the id."""

    id = models.BigAutoField(primary_key=True)
    attempt = models.CharField(max_length=26)
    artifact = models.CharField(max_length=26)
    tenant_id = models.BigIntegerField(db_default=0)
    sha256 = models.CharField(max_length=64)
    bytes = models.BigIntegerField()
    content_type = models.CharField(max_length=127, blank=True, default="")
    name = models.CharField(max_length=255, blank=True, default="")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "sha256"], name="one_upload_per_run_and_content")
        ]
        indexes = [
            models.Index(fields=["created_at"], name="run_upload_age_idx"),
            models.Index(fields=["tenant_id", "created_at"], name="run_upload_of_tenant_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.attempt} {self.artifact}"


class ByteChange(models.Model):
    """A change of the total size of a tenant's artifacts. The sum of a tenant's rows is that total; an
    artifact counts until its removal is complete. Triggers write the rows
    (`artifacts/migrations/_byte_changes.py`), and a sweep merges them."""

    id = models.BigAutoField(primary_key=True)
    tenant_id = models.BigIntegerField()
    bytes = models.BigIntegerField()

    class Meta:
        indexes = [models.Index(fields=["tenant_id", "bytes"], name="byte_change_of_tenant_idx")]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.bytes:+}"


class StoreFolder(models.Model):
    """The folder that is the database's store, if it is a folder: one row. folder: the id in its file
    `store.id` (`artifacts.store.identity`)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    folder = models.CharField(max_length=26)

    class Meta:
        constraints = [
            models.CheckConstraint(name="one_store_folder", condition=Q(id=1) & ~Q(folder="")),
        ]

    def __str__(self) -> str:
        return self.folder
