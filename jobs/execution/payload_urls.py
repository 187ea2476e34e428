"""Reads the files of https URLs in a payload that no web process has read: of jobs of workflows and
schedules, whose values may be known at their start only, and of `submit` on the command line.

They are read right before the run is sent, by the same reader and with the same limits as in a submit; the
stored payload then refers to them, so that another try gets the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db import DatabaseError, transaction

from artifacts.refs import find_refs
from artifacts.uses import add_uses, lock_for_use
from foundation.fetch import AddressRefused, NotFetched, TooLong, read_fetched_url
from gpus.errors import BadInput, ConnectFailed, GpuError, Interrupted
from gpus.protocol import ModelSpec
from gpus.runners.base import Abort, RunRequest
from jobs.callbacks.guard import refused_origins
from jobs.domain.errors import FileNotFetched, Refused
from jobs.models import Job
from jobs.ports import Ports
from jobs.submission.fetched_urls import UrlFetcher, WantedUrls, close_all
from jobs.submission.input_files import FetchedFile, InputFiles, PayloadFiles, urls_of

_TEMPORARY = frozenset({408, 425, 429})


class InputsNotRead(GpuError):
    """A file of the payload could not be read now; no request was sent."""

    code = ConnectFailed.code  # the same cost: some tries are free, then they are charged, with a pause
    counts = False


def has_urls(spec: ModelSpec, payload: Any) -> bool:
    """Return True if a payload has https URLs at places for files."""
    return any(True for _ in urls_of(payload, spec.payload_schema))


def with_files_of_urls(
    request: RunRequest, tenant_id: int, fetcher: UrlFetcher, abort: Abort, ports: Ports
) -> RunRequest:
    """Return the request with references to artifacts in place of its https URLs at places for files.

    abort: ends the read. Raises BadInput for a file that is not there or not allowed, with its place, and
    InputsNotRead, Interrupted.
    """
    schema = request.model.payload_schema
    urls = tuple(dict.fromkeys(urls_of(request.payload, schema)))
    most = settings.DISPATCHER.fetched_urls
    wanted = WantedUrls(urls[:most], tenant_id, refused_origins(ports.registry), urls[most:])
    future = fetcher.fetch_all(wanted)
    abort.set_reader(lambda: _cancel(future))
    try:
        fetched = future.result()
    except CancelledError:
        raise Interrupted("It was stopped before it began.") from None
    finally:
        abort.set_reader(None)
    try:
        with ports.database():
            payload = _stored(request, tenant_id, fetched, ports)
    except Refused as refused:
        text = f"{refused.pointer or '/payload'}: {refused}"
        raise (InputsNotRead if _may_pass(refused, fetched) else BadInput)(text) from None
    except DatabaseError:
        raise InputsNotRead from None
    finally:
        close_all(fetched)
    return replace(request, payload=payload)


def _stored(request: RunRequest, tenant_id: int, fetched: Mapping[str, FetchedFile], ports: Ports) -> Any:
    now = ports.clock.now()
    files = PayloadFiles(request.payload, request.model.payload_schema, InputFiles(fetched=fetched))
    payload = files.stored(tenant_id, now, ports)
    artifacts = list(find_refs(payload, settings.DISPATCHER.max_artifact_refs))
    with transaction.atomic():
        there = lock_for_use(artifacts)
        add_uses(request.job_id, sorted(there))
        Job.objects.filter(pk=request.job_id).update(payload=payload)
    return payload


def _cancel(future: Future[Any]) -> None:
    future.cancel()


def _may_pass(refused: Refused, fetched: Mapping[str, FetchedFile]) -> bool:
    """Return True if another try may succeed."""
    if refused.status == 503:
        return True
    faults = {url: one for url, one in fetched.items() if isinstance(one, NotFetched)}
    is_of_a_file = isinstance(refused, FileNotFetched) and bool(faults)
    return is_of_a_file and all(_is_temporary(url, one) for url, one in faults.items())


def _is_temporary(url: str, fault: NotFetched) -> bool:
    if isinstance(fault, AddressRefused | TooLong):
        return False
    try:
        read_fetched_url(url)
    except NotFetched:
        return False
    return fault.status is None or fault.status >= 500 or fault.status in _TEMPORARY
