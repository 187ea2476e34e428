"""Why an artifact is not accepted, given out or removed. The docstring of a class is its default message."""

from __future__ import annotations


class ArtifactRefused(Exception):
    """The request can't be carried out. code: stable. retry_after_seconds: None if it will not pass."""

    code = "artifact_refused"
    status = 409
    retry_after_seconds: float | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ArtifactTooLarge(ArtifactRefused):
    """The artifact is larger than allowed."""

    code = "artifact_too_large"
    status = 413


class ArtifactBytesDiffer(ArtifactRefused):
    """An artifact with this SHA-256 and another length exists: one of the two lengths is wrong."""

    code = "artifact_bytes_differ"
    status = 422


class ArtifactQuotaFull(ArtifactRefused):
    """The tenant's artifacts have as many bytes as they may."""

    code = "artifact_quota_full"
    status = 429
    retry_after_seconds = 60.0


class TooManyPromised(ArtifactRefused):
    """Too many uploads of the tenant are promised and not complete."""

    code = "too_many_promised_artifacts"
    status = 429
    retry_after_seconds = 10.0


class TooManyRunOutputs(ArtifactRefused):
    """Runs of the tenant have too many outputs that are no artifacts."""

    code = "too_many_run_outputs"
    status = 429
    retry_after_seconds = 60.0


class BeingRemoved(ArtifactRefused):
    """An artifact with the same content is being removed. Try again in a few seconds."""

    code = "artifact_being_removed"
    status = 503
    retry_after_seconds = 5.0


class TooManyCompletions(ArtifactRefused):
    """Too many uploads in parts are being checked. All parts are kept: repeat this request."""

    code = "too_many_completions"
    status = 503
    retry_after_seconds = 5.0


class NotUploaded(ArtifactRefused):
    """The store does not have all bytes of the artifact yet."""

    code = "artifact_not_uploaded"
    status = 409


class InUse(ArtifactRefused):
    """Jobs or runs refer to the artifact. Erase their data, or wait until they are removed."""

    code = "artifact_in_use"
    status = 409
