"""The store in a bucket of S3, or of a server with the same API. Needs the extra `s3` (boto3).

A signed PUT binds length, SHA-256 and "only if there is none": the store itself answers 403, 400 or 412. It
checks a signature when the PUT begins, so an object can appear after its request has expired; the sweep
`unknown_objects` finds those without a row.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from tempfile import SpooledTemporaryFile
from typing import Any

from artifacts.keys import PREFIX, ObjectKey, read_key
from artifacts.store.contract import (
    CHUNK_BYTES,
    MAX_SIGNED_SECONDS,
    PART_BYTES,
    NoSuchObject,
    ObjectExists,
    SignedRequest,
    StoredObject,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UploadInParts,
    WrongBytes,
    bounded_part_bytes,
    is_blocked,
    number_of_parts,
    size_of_part,
)
from artifacts.store.names import attachment, served_type
from artifacts.store.place import S3Place

MAX_OBJECT_BYTES = 5 * 1024**4
MAX_PUT_BYTES = 5 * 1024**3
MIN_PART_BYTES = 5 * 1024**2
"""Limits of S3, beside MAX_PARTS. A part has 5 MiB or more, except for the last one."""
PART_AGAIN_BYTES = 8 * 1024 * 1024
"""Size of the parts in which the dispatcher itself writes: one is in memory or in a file at a time. Parts of
objects that would have too many of them are larger (`bounded_part_bytes`)."""
UNCHECKED = "p/"
"""Begin of the keys under which parts are joined, until their hash is checked."""
_TOKEN = re.compile(r"[0-9a-f]{16}\Z")
CONNECT_SECONDS, READ_SECONDS = 3.0, 15.0
SKEW_SECONDS = 900.0
"""S3 itself refuses requests from more than 15 minutes ahead."""
_MISSING = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchUpload"})
_EXISTS = frozenset({"412", "PreconditionFailed"})
_WRONG = frozenset({"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"})
_FULL = frozenset({"507", "InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})


class NoBoto(Exception):
    """The package boto3 is not installed."""

    def __init__(self) -> None:
        super().__init__("An S3 store needs the package boto3: install it, or gpu-dispatcher[s3].")


class S3Store:
    """A bucket. Credentials come from boto3's chain: environment, configuration file, or the machine's role.

    now: the time, for the end of a signed request as it is reported. skew_seconds: how far the clocks of
    dispatcher and store may differ: signed requests live so much longer. part_bytes: of an upload in parts;
    larger ones for an object that would have too many.
    """

    is_shared = True
    max_put_bytes: int | None = MAX_PUT_BYTES
    max_object_bytes: int | None = MAX_OBJECT_BYTES

    def __init__(
        self,
        place: S3Place,
        now: Callable[[], datetime],
        *,
        skew_seconds: float = SKEW_SECONDS,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.part_bytes = part_bytes
        self._place = place
        self._now = now
        self._skew_seconds = skew_seconds
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}

    def _client(self, endpoint: str = "") -> Any:
        """Return the client of an endpoint; default: that for the dispatcher. Raises NoBoto."""
        endpoint = endpoint or self._place.endpoint
        with self._lock:
            if endpoint not in self._clients:
                self._clients[endpoint] = _new_client(endpoint, self._place.region)
            return self._clients[endpoint]

    def _named(self, key: ObjectKey) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": f"{self._place.prefix}{key}"}

    # -- signed requests ---------------------------------------------------------------------

    def sign_put(self, key: ObjectKey, size: int, seconds: float) -> SignedRequest:
        checksum = _base64(key.sha256)
        bound = {"ContentLength": size, "ChecksumSHA256": checksum, "IfNoneMatch": "*"}
        headers = {"Content-Length": str(size), "x-amz-checksum-sha256": checksum, "If-None-Match": "*"}
        return self._signed("put_object", {**self._named(key), **bound}, headers, seconds)

    def sign_get(
        self, key: ObjectKey, seconds: float, *, content_type: str = "", name: str = ""
    ) -> SignedRequest:
        # both always: a client may have put the object with a type of its own
        answer = {
            "ResponseContentDisposition": attachment(name),
            "ResponseContentType": served_type(content_type),
        }
        return self._signed("get_object", {**self._named(key), **answer}, {}, seconds)

    def sign_part(self, key: ObjectKey, upload: str, number: int, size: int, seconds: float) -> SignedRequest:
        bound = {"PartNumber": number, "ContentLength": size}
        return self._signed(
            "upload_part", {**self._upload(key, upload), **bound}, {"Content-Length": str(size)}, seconds
        )

    def _signed(
        self, operation: str, parameters: Mapping[str, Any], headers: Mapping[str, str], seconds: float
    ) -> SignedRequest:
        seconds = int(min(seconds, MAX_SIGNED_SECONDS))
        client = self._client(self._place.public_endpoint)
        with _store_errors():
            lives = int(min(seconds + self._skew_seconds, MAX_SIGNED_SECONDS))
            url = client.generate_presigned_url(operation, dict(parameters), ExpiresIn=lives)
        method = "GET" if operation == "get_object" else "PUT"
        return SignedRequest(method, url, headers, self._now() + timedelta(seconds=seconds))

    # -- objects -----------------------------------------------------------------------------

    def find(self, key: ObjectKey) -> StoredObject | None:
        try:
            with _store_errors():
                found = self._client().head_object(**self._named(key))
        except NoSuchObject:
            return None
        return StoredObject(key, found["ContentLength"], found["LastModified"])

    def read(self, key: ObjectKey, first: int, length: int) -> bytes:
        try:
            with _store_errors():
                wanted = f"bytes={first}-{first + length - 1}"
                body = self._client().get_object(**self._named(key), Range=wanted)["Body"]
                with body:
                    return bytes(body.read())
        except _NoSuchRange:
            return b""

    def chunks(self, key: ObjectKey, first: int = 0) -> Iterator[bytes]:
        with _store_errors():
            wanted = {"Range": f"bytes={first}-"} if first else {}
            body = self._client().get_object(**self._named(key), **wanted)["Body"]
        return self._chunks(body)

    def _chunks(self, body: Any) -> Iterator[bytes]:
        with _store_errors(), body:
            while chunk := body.read(CHUNK_BYTES):
                yield chunk

    def write(self, key: ObjectKey, size: int, chunks: Iterable[bytes]) -> None:
        if self._has(key):
            return
        if size > self.part_bytes:
            self._write_parts(key, size, chunks)
            return
        with SpooledTemporaryFile(PART_AGAIN_BYTES) as kept:
            _collect(chunks, size, kept, key.sha256)
            with suppress(ObjectExists), _store_errors():
                self._client().put_object(
                    **self._named(key),
                    Body=kept,
                    ContentLength=size,
                    ChecksumSHA256=_base64(key.sha256),
                    IfNoneMatch="*",
                )

    def _write_parts(self, key: ObjectKey, size: int, chunks: Iterable[bytes]) -> None:
        """Write an object in parts; its hash is computed on the way, so nothing is read back."""
        client, named = self._client(), self._named(key)
        with _store_errors():
            upload = client.create_multipart_upload(**named)["UploadId"]
        digest, done = hashlib.sha256(), []
        try:
            again_bytes = min(self.part_bytes, PART_AGAIN_BYTES)
            for number, part in enumerate(_parts(chunks, size, digest, again_bytes), 1):
                with _store_errors():
                    answer = client.upload_part(**named, UploadId=upload, PartNumber=number, Body=part)
                done.append({"PartNumber": number, "ETag": answer["ETag"]})
            if digest.hexdigest() != key.sha256:
                raise _wrong_hash(digest.hexdigest(), key.sha256)
            with suppress(ObjectExists), _store_errors():
                client.complete_multipart_upload(
                    **named, UploadId=upload, MultipartUpload={"Parts": done}, IfNoneMatch="*"
                )
                return
        except BaseException:
            self._abort({**named, "UploadId": upload})
            raise
        self._abort({**named, "UploadId": upload})

    def _has(self, key: ObjectKey) -> bool:
        """Return True if the object is stored. An empty one in its place is removed."""
        found = self.find(key)
        if found is not None and is_blocked(found):
            self.remove(key)
            return False
        return found is not None

    def remove(self, key: ObjectKey) -> None:
        self._delete(self._named(key))

    def _delete(self, named: Mapping[str, str]) -> None:
        with suppress(NoSuchObject), _store_errors():
            self._client().delete_object(**named)

    def block(self, key: ObjectKey) -> None:
        with _store_errors():
            self._client().put_object(**self._named(key), Body=b"")

    def objects(self, after: ObjectKey | None = None) -> Iterator[StoredObject]:
        place = self._place
        begin = {"StartAfter": f"{place.prefix}{after}"} if after is not None else {}
        pages = (
            self._client()
            .get_paginator("list_objects_v2")
            .paginate(Bucket=place.bucket, Prefix=f"{place.prefix}{PREFIX}", **begin)
        )
        with _store_errors():
            for page in pages:
                for one in page.get("Contents", ()):
                    key = read_key(one["Key"].removeprefix(place.prefix))
                    if key is not None:
                        yield StoredObject(key, one["Size"], one["LastModified"])

    # -- uploads in parts --------------------------------------------------------------------

    # S3 computes no SHA-256 of an object that is uploaded in parts. So the parts are joined under a key that
    # no signed URL names; the joined object is read once, and then copied within S3 to its own key.

    def begin_parts(self, key: ObjectKey, size: int) -> UploadInParts:
        token = secrets.token_hex(8)
        with _store_errors():
            begun = self._client().create_multipart_upload(**self._unchecked(key, token))
        return _in_parts(f"{token}:{begun['UploadId']}", size, self.part_bytes)

    def find_parts(self, key: ObjectKey, upload: str, size: int) -> UploadInParts:
        stored = frozenset(self._stored_parts(self._upload(key, upload), size))
        return _in_parts(upload, size, self.part_bytes, stored)

    def complete_parts(self, key: ObjectKey, upload: str, size: int) -> None:
        named = self._upload(key, upload)
        joined = {name: named[name] for name in ("Bucket", "Key")}
        try:
            self._join(named, size)
        except NoSuchObject:
            if not self._is_there(joined):  # else a process died after it had joined them
                raise
        tag = self._check_hash(joined, key, size)
        if not self._has(key):
            self._copy(joined, key, size, tag)
        self._delete(joined)

    def _join(self, named: Mapping[str, str], size: int) -> None:
        found = self._stored_parts(named, size)
        parts = number_of_parts(size, bounded_part_bytes(size, self.part_bytes))
        missing = sorted(set(range(1, parts + 1)) - found.keys())
        if missing:
            raise NoSuchObject(f"{len(missing)} of {parts} parts are missing, the first is {missing[0]}.")
        done = [{"PartNumber": number, "ETag": tag} for number, tag in sorted(found.items())]
        with _store_errors():
            self._client().complete_multipart_upload(**named, MultipartUpload={"Parts": done})

    def _is_there(self, named: Mapping[str, str]) -> bool:
        try:
            with _store_errors():
                self._client().head_object(**named)
        except NoSuchObject:
            return False
        return True

    def _check_hash(self, joined: Mapping[str, str], key: ObjectKey, size: int) -> str:
        """Read joined parts once; return their tag. Raises WrongBytes, and removes them."""
        digest, read = hashlib.sha256(), 0
        with _store_errors():
            answer = self._client().get_object(**joined)
        for chunk in self._chunks(answer["Body"]):
            digest.update(chunk)
            read += len(chunk)
        if read != size or digest.hexdigest() != key.sha256:
            self._delete(joined)
            raise _wrong_hash(digest.hexdigest(), key.sha256)
        return str(answer["ETag"])

    def _copy(self, joined: Mapping[str, str], key: ObjectKey, size: int, tag: str) -> None:
        """Copy what was checked inside the store, in parts: a single copy may take longer than an answer."""
        client, named = self._client(), self._named(key)
        source = {"CopySource": dict(joined), "CopySourceIfMatch": tag}
        if size <= self.part_bytes:
            with _source_errors():
                client.copy_object(**named, **source)
            return
        with _store_errors():
            upload = client.create_multipart_upload(**named)["UploadId"]
        done = []
        try:
            part_bytes = bounded_part_bytes(size, self.part_bytes)
            for number, first in enumerate(range(0, size, part_bytes), 1):
                last = min(first + part_bytes, size) - 1
                with _source_errors():
                    answer = client.upload_part_copy(
                        **named,
                        **source,
                        UploadId=upload,
                        PartNumber=number,
                        CopySourceRange=f"bytes={first}-{last}",
                    )
                done.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            with _store_errors():
                client.complete_multipart_upload(
                    **named, UploadId=upload, MultipartUpload={"Parts": done}, IfNoneMatch="*"
                )
        except ObjectExists:  # the same bytes, by another way
            self._abort({**named, "UploadId": upload})
        except BaseException:
            self._abort({**named, "UploadId": upload})
            raise

    def abandon_parts(self, key: ObjectKey, upload: str) -> None:
        try:
            named = self._upload(key, upload)
        except NoSuchObject:
            return
        self._abort(named)
        with suppress(StoreError):
            self._delete({name: named[name] for name in ("Bucket", "Key")})

    def _unchecked(self, key: ObjectKey, token: str) -> dict[str, str]:
        name = f"{self._place.prefix}{UNCHECKED}{key.tenant_id}/{key.sha256}/{token}"
        return {"Bucket": self._place.bucket, "Key": name}

    def _upload(self, key: ObjectKey, upload: str) -> dict[str, str]:
        """Return what names an upload of ours in a request. Raises NoSuchObject, also for one that an earlier
        version began."""
        token, _, upload_id = upload.partition(":")
        if not _TOKEN.match(token) or not upload_id:
            raise NoSuchObject("There is no such upload.")
        return {**self._unchecked(key, token), "UploadId": upload_id}

    def _stored_parts(self, named: Mapping[str, str], size: int) -> dict[int, str]:
        """Return the tags of the parts with the right size, by number. Raises NoSuchObject."""
        found: dict[int, str] = {}
        pages = self._client().get_paginator("list_parts").paginate(**named)
        try:
            with _store_errors():
                for page in pages:
                    found |= _complete_ones(page.get("Parts", ()), size, self.part_bytes)
        except _BadRequest:  # some servers' answer to an upload of another key
            raise NoSuchObject("There is no such upload.") from None
        return found

    def _abort(self, named: Mapping[str, str]) -> None:
        with suppress(StoreError), _store_errors():
            self._client().abort_multipart_upload(**named)

    # -- care ----------------------------------------------------------------------------------

    def drop_unfinished(self, before: datetime) -> int:
        dropped = 0
        for prefix in (PREFIX, UNCHECKED):
            dropped += sum(self._drop_uploads(prefix, before))
        pages = self._client().get_paginator("list_objects_v2")
        with _store_errors():
            for page in pages.paginate(Bucket=self._place.bucket, Prefix=f"{self._place.prefix}{UNCHECKED}"):
                for one in page.get("Contents", ()):
                    if one["LastModified"] < before and self._is_ours(one["Key"]):
                        self._delete({"Bucket": self._place.bucket, "Key": one["Key"]})
                        dropped += 1
        return dropped

    def _drop_uploads(self, prefix: str, before: datetime) -> Iterator[int]:
        place = self._place
        pages = self._client().get_paginator("list_multipart_uploads")
        with _store_errors():
            for page in pages.paginate(Bucket=place.bucket, Prefix=f"{place.prefix}{prefix}"):
                for one in page.get("Uploads", ()):
                    if one["Initiated"] < before and self._is_ours(one["Key"]):
                        self._abort({"Bucket": place.bucket, "Key": one["Key"], "UploadId": one["UploadId"]})
                        yield 1

    def _is_ours(self, name: str) -> bool:
        rest = name.removeprefix(self._place.prefix)
        if not rest.startswith(UNCHECKED):
            return read_key(rest) is not None
        object_name, _, token = rest.removeprefix(UNCHECKED).rpartition("/")
        return read_key(f"{PREFIX}{object_name}") is not None and _TOKEN.match(token) is not None

    def require_own(self) -> None:
        """No effect: all hosts see the same bucket."""

    def check(self) -> str:
        try:
            with _store_errors():
                self._client().head_bucket(Bucket=self._place.bucket)
        except NoSuchObject:
            return f"There is no bucket {self._place.bucket}."
        except (StoreError, NoBoto) as error:
            return f"Bucket {self._place.bucket}: {error}"
        return ""


class _BadRequest(StoreUnavailable):
    """400."""


class _NoSuchRange(StoreError):
    """416: the object ends before the range."""


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn boto3's errors into those of a store. Their own texts can contain addresses and keys."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        if code in _MISSING:
            raise NoSuchObject("The store has no such object.") from None
        if code in _EXISTS or status == "412":
            raise ObjectExists("The object is already stored.") from None
        if code == "InvalidRange" or status == "416":
            raise _NoSuchRange("The object is shorter.") from None
        if code in _WRONG:
            raise WrongBytes("The bytes are not those that were declared.") from None
        if code in _FULL or status == "507":
            raise StoreFull("The store is full.") from None
        kind = _BadRequest if status == "400" else StoreUnavailable
        raise kind(f"The store answered {status} {code}.") from None
    except (BotoCoreError, HTTPClientError, OSError) as error:
        raise StoreUnavailable(f"The store does not answer ({type(error).__name__}).") from None


@contextmanager
def _source_errors() -> Iterator[None]:
    """Errors of a copy: 412 says that its source is no longer the object that was checked."""
    try:
        with _store_errors():
            yield
    except ObjectExists:
        raise StoreUnavailable("The joined parts were replaced while they were copied.") from None


def require_boto() -> None:
    """Raises NoBoto."""
    try:
        import boto3  # noqa: F401
    except ImportError:
        raise NoBoto from None


def _new_client(endpoint: str, region: str) -> Any:
    require_boto()
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint or None,
        region_name=region or None,
        config=Config(
            signature_version="s3v4",
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"total_max_attempts": 2, "mode": "standard"},
            s3={"addressing_style": "path" if endpoint else "auto"},
            # else each signed request would have to carry a checksum of boto3's choice
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def _in_parts(upload: str, size: int, least: int, stored: frozenset[int] = frozenset()) -> UploadInParts:
    part_bytes = bounded_part_bytes(size, least)
    return UploadInParts(upload, part_bytes, number_of_parts(size, part_bytes), stored)


def _complete_ones(parts: Iterable[Mapping[str, Any]], size: int, least: int) -> dict[int, str]:
    """Return the tags of the parts that have the size of their number in an object of `size` bytes."""
    found, part_bytes = {}, bounded_part_bytes(size, least)
    for part in parts:
        with suppress(ValueError):  # no such number
            if part["Size"] == size_of_part(size, part_bytes, part["PartNumber"]):
                found[part["PartNumber"]] = part["ETag"]
    return found


def _collect(chunks: Iterable[bytes], size: int, kept: Any, sha256: str) -> None:
    digest, received = hashlib.sha256(), 0
    for chunk in chunks:
        received += len(chunk)
        if received > size:
            break
        digest.update(chunk)
        try:
            kept.write(chunk)
        except OSError as error:
            raise StoreUnavailable(f"No temporary file can be written: {error.strerror} (TMPDIR).") from None
    if received != size or digest.hexdigest() != sha256:
        raise _wrong_hash(digest.hexdigest(), sha256)
    kept.seek(0)


def _parts(chunks: Iterable[bytes], size: int, digest: Any, least: int) -> Iterator[bytes]:
    """Yield the bytes in parts of `least` bytes, or more of a very large object. Raises WrongBytes for
    another size than `size`."""
    waiting, received, part_bytes = bytearray(), 0, bounded_part_bytes(size, least)
    for chunk in chunks:
        received += len(chunk)
        if received > size:
            raise WrongBytes(f"More than the declared {size} bytes were sent.")
        digest.update(chunk)
        waiting += chunk
        while len(waiting) >= part_bytes:
            part = bytes(memoryview(waiting)[:part_bytes])
            del waiting[:part_bytes]
            yield part
    if received != size:
        raise WrongBytes(f"{received} of the declared {size} bytes were sent.")
    if waiting:
        yield bytes(waiting)


def _wrong_hash(found: str, declared: str) -> WrongBytes:
    return WrongBytes(f"The bytes have the SHA-256 {found}, declared was {declared}.")


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
