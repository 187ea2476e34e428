"""What a store of objects can do. `local` and `s3` implement it, and pass one suite of tests
(tests/artifacts/store/test_contract.py).

Objects are created once and never changed: their key is their hash. Clients and GPU servers read and write
them by signed requests, which bind method, key, size, hash and time; the dispatcher itself by `read`,
`chunks` and `write`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from artifacts.keys import ObjectKey

CHUNK_BYTES = 1024 * 1024
"""Size of the pieces in which bytes pass through a process."""
PART_BYTES = 64 * 1024 * 1024
"""Size of the parts of an upload, unless a setting says another."""
MAX_PARTS = 10_000
"""Of an upload: S3's limit."""
MAX_SIGNED_SECONDS = 7 * 86_400.0
"""The longest life of a signed request: S3's limit."""


class StoreError(Exception):
    """Base of a store's errors. Its text has no address and no secret: clients may read it."""


class StoreUnavailable(StoreError):
    """The store does not answer, or answers with an error of its own. Another try may succeed."""


class StoreFull(StoreError):
    """The store has no room for the object. Nothing of it is kept."""


class WrongBytes(StoreError):
    """The bytes are not those that were declared: another length or another hash. Nothing of them is kept."""


class ObjectExists(StoreError):
    """An object with this key is already stored. It has the same bytes, because the key is their hash."""


class PartBusy(StoreError):
    """Another request is sending this part of an upload."""


class NoSuchObject(StoreError):
    """The store has no such object, or the upload in parts is unknown."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A presigned request, which any client may send until it expires. headers: must be sent as they are."""

    method: str
    url: str
    headers: Mapping[str, str]
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in the store. stored_at: by the store's clock."""

    key: ObjectKey
    bytes: int
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class UploadInParts:
    """How an object is uploaded in parts: part n, from 1, has `part_bytes` bytes, the last one the rest.

    upload: the store's id of the upload. stored: numbers of parts that the store has.
    """

    upload: str
    part_bytes: int
    parts: int
    stored: frozenset[int] = frozenset()


class Store(Protocol):
    """A store of objects. All methods may raise StoreUnavailable."""

    is_shared: bool
    """True if processes on several hosts see the same objects."""
    max_put_bytes: int | None
    """Of an object that is put in one request; None: any number."""
    max_object_bytes: int | None
    """Of any object."""

    def sign_put(self, key: ObjectKey, size: int, seconds: float) -> SignedRequest:
        """Return a request that stores the object, if its body has exactly this size and the key's hash, and
        if no such object is stored yet (else 412). seconds: how long it may begin."""

    def sign_get(
        self, key: ObjectKey, seconds: float, *, content_type: str = "", name: str = ""
    ) -> SignedRequest:
        """Return a request that reads the object, whole or a range.

        content_type: of the answer; one in which browsers run something becomes `application/octet-stream`
        (`names.served_type`). name: file name of the answer, which is always an attachment."""

    def find(self, key: ObjectKey) -> StoredObject | None:
        """Return the object without its bytes; None if it is not stored."""

    def read(self, key: ObjectKey, first: int, length: int) -> bytes:
        """Return up to `length` bytes from position `first`. Raises NoSuchObject."""

    def chunks(self, key: ObjectKey, first: int = 0) -> Iterator[bytes]:
        """Yield the object's bytes from position `first`, about `CHUNK_BYTES` each. Raises NoSuchObject."""

    def write(self, key: ObjectKey, size: int, chunks: Iterable[bytes]) -> None:
        """Store an object; one that is already stored stays. Raises WrongBytes and StoreFull."""

    def remove(self, key: ObjectKey) -> None:
        """Remove the object; no error if there is none."""

    def block(self, key: ObjectKey) -> None:
        """Put an empty object in the place of this one (`is_blocked`). A PUT that was signed before is then
        refused, because there is an object; `write` replaces it, and `remove` ends it."""

    def objects(self, after: ObjectKey | None = None) -> Iterator[StoredObject]:
        """Yield objects in the order of their keys' texts, beginning behind `after`; read page by page."""

    def begin_parts(self, key: ObjectKey, size: int) -> UploadInParts:
        """Begin an upload in parts."""

    def find_parts(self, key: ObjectKey, upload: str, size: int) -> UploadInParts:
        """Return how far an upload in parts is. Raises NoSuchObject."""

    def sign_part(self, key: ObjectKey, upload: str, number: int, size: int, seconds: float) -> SignedRequest:
        """Return a request that stores one part, if its body has exactly this size. It may be repeated."""

    def complete_parts(self, key: ObjectKey, upload: str, size: int) -> None:
        """Join the parts, check size and hash, for which all bytes are read once, and then make them the
        object: before that, they cannot be read.

        Raises WrongBytes, StoreFull, and NoSuchObject while parts are missing."""

    def abandon_parts(self, key: ObjectKey, upload: str) -> None:
        """Remove the parts of an upload, which takes no further ones; no error if there is none."""

    def drop_unfinished(self, before: datetime) -> int:
        """Remove what uploads left that began before this time and did not end; return how many."""

    def require_own(self) -> None:
        """Raise StoreUnavailable if this is a folder, and not that of the database."""

    def check(self) -> str:
        """Try the store; return its fault as a text for operators, or ""."""


EMPTY_SHA256 = hashlib.sha256().hexdigest()


def is_blocked(found: StoredObject) -> bool:
    """Return True for the empty object that `block` has put in the place of another one."""
    return found.bytes == 0 and found.key.sha256 != EMPTY_SHA256


def number_of_parts(size: int, part_bytes: int) -> int:
    return max(1, -(-size // part_bytes))


def bounded_part_bytes(size: int, least: int) -> int:
    """Return the size of the parts of an object of `size` bytes: `least`, or more in whole MiB if these were
    more than MAX_PARTS."""
    of_most = -(-size // MAX_PARTS)
    return least if of_most <= least else -(-of_most // CHUNK_BYTES) * CHUNK_BYTES


def size_of_part(size: int, part_bytes: int, number: int) -> int:
    """Return the size of part `number`, from 1. Raises ValueError if there is no such part."""
    if not 1 <= number <= number_of_parts(size, part_bytes):
        raise ValueError(f"no part {number}")
    return min(part_bytes, size - (number - 1) * part_bytes)
