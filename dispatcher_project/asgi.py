"""The ASGI application: Django in a few threads; event streams and long polls on the event loop."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import django
from a2wsgi import WSGIMiddleware

from dispatcher_project.celery_transport.gc_tuning import loaded_for_good

if TYPE_CHECKING:
    from artifacts.store.local import LocalStore

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings.production")

WSGI_THREADS = 16
SWITCH_SECONDS = 0.0005
"""Longest time that a computing thread keeps the interpreter. A submit releases it at each statement; with
Python's 5 ms it would wait for a time slice of every computing thread."""

HEAVY_AT_ONCE = 1


def make_application() -> Any:
    """Return a new ASGI application; one per event loop, because its event hub belongs to the loop."""
    django.setup(set_prefix=False)

    from django.conf import settings

    from dispatcher_project.web.artifact_bytes import ArtifactBytes
    from dispatcher_project.web.asgi_gateway import AsgiGateway
    from dispatcher_project.web.cog_uploads import CogUploads
    from dispatcher_project.web.headers import Utf8Handler
    from dispatcher_project.web.request_limits import FairThreads, ResponseDeadline, unless_given_up
    from dispatcher_project.web.submit_batcher import SubmitBatcher, SubmitHandler
    from jobs.events.hub import EventHub
    from jobs.ports import production_ports
    from jobs.submission.fetched_urls import UrlFetcher
    from workflows.event_stream import follow_run

    threads = WSGIMiddleware(cast("Any", unless_given_up(Utf8Handler())), workers=WSGI_THREADS)
    limits = settings.DISPATCHER
    sys.setswitchinterval(SWITCH_SECONDS)
    behind = FairThreads(cast("Any", threads), limits.web_threads_per_tenant, heavy_at_once())
    batcher = SubmitBatcher(behind, SubmitHandler())
    return AsgiGateway(
        ResponseDeadline(batcher, limits.answer_seconds),
        lambda: EventHub(settings.REDIS_URL),
        begin_presence,
        streams_per_reader=limits.streams_per_reader,
        body_bytes=limits.web_body_bytes,
        artifact_bytes=ArtifactBytes(local_store),
        cog_uploads=CogUploads(production_ports),
        url_fetcher=UrlFetcher(),
        sources={"run": follow_run},
    )


def local_store() -> LocalStore | None:
    """Return the store of artifacts if it is a folder."""
    from artifacts.store.local import LocalStore
    from jobs.ports import production_ports

    store = production_ports().artifact_store
    return store if isinstance(store, LocalStore) else None


def heavy_at_once() -> int:
    """Return the number of heavy requests at once. More than one compete with each other and with short
    submits for the interpreter and for SQLite's lock: another tenant's p99 beside batches was 113 ms with
    one, 179 ms with two."""
    from django.conf import settings

    return int(settings.DISPATCHER.web_heavy_at_once) or HEAVY_AT_ONCE


def begin_presence() -> Callable[[], None]:
    """Write this web process's sign of life every few seconds; call the returned function to end it."""
    from dispatcher_project.wiring import make_web_presence
    from jobs.ports import production_ports

    ports = production_ports()
    presence = make_web_presence(ports)
    presence.start()

    def end() -> None:
        presence.stop()
        ports.request_refusals.write(now=True)

    return end


with loaded_for_good():
    application = make_application()
