"""Reads the files that a result names by URL: from the origin of its own GPU server, with the headers that
the server is registered with; from elsewhere by https, at public addresses and
DISPATCHER_FETCHED_URL_NETWORKS.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urljoin, urlsplit

from django.conf import settings

from foundation.fetch import (
    MAX_REDIRECTS,
    AddressRefused,
    FetchLimits,
    NotFetched,
    NotKept,
    TooLong,
    TooSlow,
    fetch_now,
    read_fetched_url,
)
from foundation.http_client import MAX_URL_LENGTH, REDIRECTS, refused_coding
from gpus.errors import ConnectFailed, GpuError, OutputInvalid, OutputRefused, RunTimedOut
from gpus.protocol import Clock, Endpoint
from gpus.runners.base import Abort, Response
from gpus.runners.http_runner import merge_headers
from gpus.runners.streaming import HttpStream, OnPiece, StreamTransport
from jobs.callbacks.guard import RefusedOrigins
from jobs.callbacks.sending import Resolver
from jobs.execution.output_errors import OutputsUnavailable, no_room

_CONNECT_SECONDS = 5.0
_TEMPORARY = frozenset({408, 425, 429})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class UrlFiles:
    """Reads the files of one attempt's result. They share `DISPATCHER_OUTPUT_FETCH_SECONDS`, from the first
    one on.

    refused: returns the origins that no URL may lead to, but for the server's own. abort: ends a read, and
    all later ones.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tenant_id: int,
        clock: Clock,
        refused: Callable[[], RefusedOrigins],
        abort: Abort,
        *,
        streams: StreamTransport | None = None,
    ) -> None:
        self._endpoint, self._tenant_id, self._clock = endpoint, tenant_id, clock
        self._refused, self._abort = refused, abort
        self._streams = streams or HttpStream()
        self._until = math.inf

    def read(self, url: str, to: BinaryIO, place: str) -> str:
        """Read a file, and return its type as its server says. to: an empty file. place: of the URL in the
        result, for messages, none of which has the URL.

        Raises OutputInvalid (not there, or not allowed), OutputRefused (a limit) and OutputsUnavailable.
        """
        if self._until == math.inf:
            self._until = self._clock.monotonic() + settings.DISPATCHER.output_fetch_seconds
        if len(url) > MAX_URL_LENGTH:
            raise OutputInvalid(f"{place} is a URL of more than {MAX_URL_LENGTH} characters.")
        reading = _Reading(to, place)
        if not self._seconds_left:
            raise self._too_slow(reading)
        if self._abort.fired:
            raise _failed(place, "its run was stopped")
        try:
            for _ in range(MAX_REDIRECTS + 1):
                if not self._is_own(url):
                    return self._read_elsewhere(url, reading)
                found = self._read_own(url, reading)
                if found.location is None:
                    return found.media_type
                url = urljoin(url, found.location).partition("#")[0]
        except NotKept as error:
            cause = error.__cause__
            number = cause.errno if isinstance(cause, OSError) else None
            raise no_room(os.strerror(number or errno.EIO)) from None
        raise OutputInvalid(f"{place} can't be read: its URL leads to more than {MAX_REDIRECTS} redirects.")

    def _is_own(self, url: str) -> bool:
        """Return True if the URL is at the server's own origin."""
        try:
            return _origin(url) == _origin(self._endpoint.url)
        except ValueError:
            return False

    @property
    def _seconds_left(self) -> float:
        return max(0.0, self._until - self._clock.monotonic())

    def _read_elsewhere(self, url: str, reading: _Reading) -> str:
        allowed = Resolver().of_files(self._refused(), self._tenant_id)
        try:
            read_fetched_url(url)
        except NotFetched as error:
            raise OutputInvalid(f"{reading.place} can't be read: its URL {error}.") from None
        try:
            limits = FetchLimits(reading.most, self._seconds_left)
            found = fetch_now(
                url, reading.add, limits=limits, allowed=allowed, set_stop=self._abort.set_reader
            )
            return found.media_type
        except TooLong:
            raise reading.too_long() from None
        except AddressRefused as error:
            raise OutputInvalid(
                f"{reading.place} can't be read: its URL {error}. Allowed are the origin of the GPU server, "
                "public addresses and DISPATCHER_FETCHED_URL_NETWORKS."
            ) from None
        except TooSlow:
            raise self._too_slow(reading) from None
        except NotFetched as error:
            raise _failed(reading.place, f"its URL {error}", error.status) from None

    def _read_own(self, url: str, reading: _Reading) -> _OwnAnswer:
        answers: list[_OwnAnswer] = []

        def on_head(head: Response) -> OnPiece:
            answers.append(_OwnAnswer(head))
            if not answers[0].is_file:
                return lambda piece: True  # the rest is not read
            length = head.headers.get("content-length", "")
            if length.isdecimal() and int(length) > reading.most:
                raise reading.too_long()
            return reading.add

        try:
            self._streams.stream(
                "GET",
                url,
                headers=merge_headers(
                    self._endpoint.headers, {"Accept": "*/*", "X-Source": "dispatcher", "Connection": "close"}
                ),
                body=b"",
                on_head=on_head,
                connect_timeout_seconds=min(_CONNECT_SECONDS, self._seconds_left),
                deadline_seconds=self._seconds_left,
                max_bytes=reading.most,
                ca_pem=self._endpoint.ca_pem,
                abort=self._abort,
            )
        except TooLong:
            raise reading.too_long() from None
        except RunTimedOut:
            raise self._too_slow(reading) from None
        except (OutputInvalid, OutputRefused):
            raise
        except ConnectFailed:
            raise _failed(reading.place, "its server can't be reached") from None
        except GpuError:
            raise _failed(reading.place, "the connection to its server broke") from None
        (found,) = answers
        if not found.is_file and found.location is None:
            raise _failed(reading.place, f"its URL answers {found.head.status}", found.head.status)
        if coding := found.refused_coding:
            raise OutputInvalid(
                f"{reading.place} can't be read: its server sends it encoded ({coding}), "
                "which was not asked for."
            )
        return found

    def _too_slow(self, reading: _Reading) -> OutputsUnavailable:
        return OutputsUnavailable(
            f"{reading.place} was not read in the {settings.DISPATCHER.output_fetch_seconds:g} s for all "
            "files of a result (DISPATCHER_OUTPUT_FETCH_SECONDS)."
        )


class _Reading:
    """A file that is being read. most: its bytes."""

    def __init__(self, to: BinaryIO, place: str) -> None:
        limits = settings.DISPATCHER
        self.place = place
        self.most = min(limits.max_artifact_bytes, limits.answer_file_bytes)
        self._setting = "MAX_ARTIFACT" if self.most == limits.max_artifact_bytes else "ANSWER_FILE"
        self._to, self._size = to, 0

    def add(self, piece: bytes) -> bool:
        """Write the next bytes. Returns False: the file goes on. Raises TooLong and NotKept."""
        self._size += len(piece)
        if self._size > self.most:
            raise TooLong
        try:
            self._to.write(piece)
        except OSError as error:
            raise NotKept from error
        return False

    def too_long(self) -> OutputRefused:
        return OutputRefused(
            f"{self.place} has more than {self.most} bytes (DISPATCHER_{self._setting}_BYTES)."
        )


@dataclass(frozen=True, slots=True)
class _OwnAnswer:
    """An answer of the GPU server. head: its status and headers."""

    head: Response

    @property
    def is_file(self) -> bool:
        return self.head.status == 200

    @property
    def location(self) -> str | None:
        """Where a redirect leads."""
        return self.head.headers.get("location") if self.head.status in REDIRECTS else None

    @property
    def refused_coding(self) -> str:
        headers = self.head.headers
        return refused_coding(headers.get("content-encoding"), headers.get("transfer-encoding"))

    @property
    def media_type(self) -> str:
        return self.head.headers.get("content-type", "").partition(";")[0].strip().lower()


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port. Raises ValueError."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _failed(place: str, why: str, status: int | None = None) -> OutputInvalid | OutputsUnavailable:
    """Return the error of a file that was not read: a status of the file itself is for good."""
    text = f"{place} can't be read: {why}."
    if status is not None and status < 500 and status not in _TEMPORARY:
        return OutputInvalid(text)
    return OutputsUnavailable(text)
