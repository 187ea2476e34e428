"""Replaces references to artifacts in a payload by signed URLs, right before a run is sent. The URLs are
neither stored nor logged. Only jobs that use artifacts come here."""

from __future__ import annotations

from dataclasses import replace

from django.db import DatabaseError

from artifacts.inputs import ObjectGone, input_urls
from artifacts.refs import BadRef, replace_refs
from artifacts.store.contract import StoreError
from gpus.errors import BadInput, ConnectFailed, GpuError
from gpus.runners.base import RunRequest
from jobs.ports import Ports

SPARE_SECONDS = 60.0
"""A URL lives so much longer than the run may last."""


class ArtifactsUnreachable(GpuError):
    """The job's artifacts could not be looked up; no request was sent."""

    code = ConnectFailed.code  # the same cost: some tries are free, then they are charged, with a pause
    counts = False


def with_input_urls(request: RunRequest, ports: Ports) -> RunRequest:
    """Return the request to send: each reference in its payload is the URL of the artifact's bytes.

    Raises BadInput if an artifact is gone, which no retry changes, and ArtifactsUnreachable.
    """
    seconds = min(request.model.run_limit_seconds, request.limit_seconds) + SPARE_SECONDS
    try:
        with ports.database():
            urls = input_urls(request.job_id, ports.artifact_store, seconds)
        return replace(request, payload=replace_refs(request.payload, urls.__getitem__))
    except ObjectGone as gone:
        raise _gone(gone.artifact_id) from None
    except KeyError as missing:
        raise _gone(str(missing.args[0])) from None
    except BadRef as bad:
        raise BadInput(str(bad)) from None
    except StoreError as error:
        raise ArtifactsUnreachable(f"The job's artifacts could not be looked up. {error}") from None
    except DatabaseError:
        raise ArtifactsUnreachable from None


def _gone(artifact_id: str) -> BadInput:
    return BadInput(f"The artifact {artifact_id} of the payload does not exist any more. Upload it again.")
