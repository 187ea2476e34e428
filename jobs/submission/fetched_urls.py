"""Reads the files of https URLs in submits, before their jobs are checked and stored.

A view never waits for a foreign server: it finds out which URLs its request needs (`urls_to_fetch`) and
hands over to the ASGI gateway, which calls it again with the files. Under plain WSGI there is no gateway:
URLs stay as they are.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import Any
from urllib.parse import unquote, urlsplit

from django.conf import settings

from artifacts.keep import HashedFile, LocalFile
from foundation.fetch import (
    AddressRefused,
    FetchLimits,
    NotFetched,
    NotKept,
    TooLong,
    TooSlow,
    fetch,
    read_fetched_url,
)
from jobs.callbacks.guard import RefusedOrigins, refused_origins
from jobs.callbacks.sending import Resolver
from jobs.domain.errors import Refused
from jobs.limits.submit_limits import limits_of
from jobs.ports import Ports
from jobs.submission.idempotency import earlier_batch, known_keys
from jobs.submission.input_files import FetchedFile, urls_of
from jobs.submission.request import Allowed, KeyedRequest, SubmitRequest, is_accepted, keys_of

SCOPE_KEY = "dispatcher.fetched_urls"
"""Key of a `FetchHandover` in the ASGI scope of a request whose URLs the gateway may read."""
_IN_MEMORY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class WantedUrls:
    """What a request needs. urls: each once. refused: origins that they may not reach. too_many: URLs beyond
    the limit, which are not read."""

    urls: tuple[str, ...]
    tenant_id: int
    refused: RefusedOrigins
    too_many: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class FetchHandover:
    """What view and gateway tell each other. wanted: by the view. fetched: by the gateway; None at the
    request's first pass. headers: of the view's first pass, for the answer: its token is taken."""

    wanted: WantedUrls | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fetched: Mapping[str, FetchedFile] | None = None


def handover_of(environ: Mapping[str, Any]) -> FetchHandover | None:
    """Return the handover of a request; None if its URLs stay as they are."""
    found: FetchHandover | None = environ.get("asgi.scope", {}).get(SCOPE_KEY)
    return found


def urls_to_fetch(
    requests: Sequence[SubmitRequest | Refused],
    *,
    tenant_id: int,
    key_models: frozenset[str] | None,
    ports: Ports,
    idempotency_key: KeyedRequest | None = None,
) -> WantedUrls | None:
    """Return the URLs that these requests need; None if they need none. A request that was accepted before,
    or that the checks refuse, needs none.

    key_models: models that the API key may submit to; None: all of the tenant's. idempotency_key: of the
    batch that these are. Raises IdempotencyConflict for it.
    """
    with_urls = [
        one for one in requests if isinstance(one, SubmitRequest) and any(True for _ in _urls(one, ports))
    ]
    if not with_urls:
        return None
    if idempotency_key is not None:
        earlier = earlier_batch(tenant_id, idempotency_key.key, idempotency_key.fingerprint)
        if earlier is not None and earlier.is_complete:
            return None
    known = known_keys(tenant_id, keys_of(with_urls))
    may = Allowed(limits_of(tenant_id, ports).allowed_models, key_models)
    urls = dict.fromkeys(
        url
        for one in with_urls
        if one.idempotency_key not in known and is_accepted(one, tenant_id, may, ports)
        for url in _urls(one, ports)
    )
    if not urls:
        return None
    found, most = tuple(urls), settings.DISPATCHER.fetched_urls
    return WantedUrls(found[:most], tenant_id, refused_origins(ports.registry), found[most:])


def _urls(request: SubmitRequest, ports: Ports) -> Iterator[str]:
    spec = ports.registry.model_spec(request.body.model)
    return urls_of(request.body.payload, spec.payload_schema if spec is not None else None)


def close_all(fetched: Mapping[str, FetchedFile]) -> None:
    """Remove the temporary files."""
    for one in fetched.values():
        if isinstance(one, LocalFile):
            with suppress(OSError):
                one.file.close()


class UrlFetcher:
    """Reads files on an event loop in a thread of its own, so that neither a slow server nor TLS and hashes
    delay the event loop of requests. A few at once, of which each tenant has a share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._all: asyncio.Semaphore | None = None
        self._of_tenant: dict[int, _Turns] = {}

    def fetch_all(self, wanted: WantedUrls) -> Future[dict[str, FetchedFile]]:
        """Read all files of a request at the same time. The result has an entry for each URL; the caller
        calls `close_all`. It may be cancelled."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._run, name="url-fetches", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(self._fetch_all(wanted), self._loop)

    def close(self) -> None:
        """Stop the thread; files that are being read are lost."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        asyncio.set_event_loop(loop)
        self._all = asyncio.Semaphore(settings.DISPATCHER.url_fetches)
        self._resolver = Resolver()
        loop.run_forever()
        loop.close()

    async def _fetch_all(self, wanted: WantedUrls) -> dict[str, FetchedFile]:
        limits = settings.DISPATCHER
        request = _Request(wanted, limits.fetched_url_bytes, time.monotonic() + limits.fetched_url_seconds)
        found: dict[str, FetchedFile] = dict.fromkeys(
            wanted.too_many,
            NotFetched(f"is not read: one request may have {limits.fetched_urls} (DISPATCHER_FETCHED_URLS)"),
        )
        tasks = {url: asyncio.ensure_future(self._fetch(url, request)) for url in wanted.urls}
        try:
            await asyncio.gather(*tasks.values())
        except asyncio.CancelledError:
            done = await asyncio.gather(*tasks.values(), return_exceptions=True)
            close_all({str(at): one for at, one in enumerate(done) if isinstance(one, LocalFile)})
            raise
        return found | {url: task.result() for url, task in tasks.items()}

    async def _fetch(self, url: str, request: _Request) -> FetchedFile:
        """Return the file, or why it could not be read."""
        limits = settings.DISPATCHER
        slow = TooSlow(
            f"was not read in {limits.fetched_url_seconds:g} s, the most for the files of a request "
            "(DISPATCHER_FETCHED_URL_SECONDS)"
        )
        try:
            read_fetched_url(url)  # before its turn: a bad URL waits for nothing
            async with asyncio.timeout(request.seconds_left):
                async with self._turn(request.wanted.tenant_id):
                    return await self._read(url, request)
        except (TimeoutError, TooSlow):
            return slow
        except TooLong:
            return TooLong(
                f"can't be read: the files of a request may have {limits.fetched_url_bytes} bytes "
                "(DISPATCHER_FETCHED_URL_BYTES)"
            )
        except AddressRefused as error:
            return AddressRefused(f"{error} (DISPATCHER_FETCHED_URL_NETWORKS allows private networks)")
        except (NotFetched, NotKept) as error:
            return error

    async def _read(self, url: str, request: _Request) -> LocalFile:
        # it is closed by `close_all`
        file = HashedFile(SpooledTemporaryFile(_IN_MEMORY_BYTES))  # type: ignore[arg-type]  # noqa: SIM115

        def add(data: bytes) -> None:
            request.take(len(data))
            file.add(data)

        allowed = self._resolver.of_files(request.wanted.refused, request.wanted.tenant_id)
        try:
            limits = FetchLimits(request.bytes_left, request.seconds_left)
            found = await fetch(url, add, limits=limits, allowed=allowed)
        except BaseException:
            file.file.close()
            raise
        return file.done(media_type=found.media_type, name=_name_of(url))

    @asynccontextmanager
    async def _turn(self, tenant_id: int) -> AsyncIterator[None]:
        assert self._all is not None
        turns = self._of_tenant.setdefault(tenant_id, _Turns())
        turns.users += 1
        try:
            async with turns.semaphore, self._all:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._of_tenant[tenant_id]


@dataclass(slots=True)
class _Turns:
    """The turns of one tenant. users: its URLs that wait or are read."""

    semaphore: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(settings.DISPATCHER.url_fetches_per_tenant)
    )
    users: int = 0


@dataclass(slots=True)
class _Request:
    """What the files of one request may still take. bytes_left: of all. until: monotonic time."""

    wanted: WantedUrls
    bytes_left: int
    until: float

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def take(self, size: int) -> None:
        """Raises TooLong."""
        if size > self.bytes_left:
            raise TooLong
        self.bytes_left -= size


def _name_of(url: str) -> str:
    """Return the last part of a URL's path, as a label for downloads."""
    return unquote(urlsplit(url).path.rpartition("/")[2])
