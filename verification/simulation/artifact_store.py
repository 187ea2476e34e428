"""The store of artifacts in the simulated world: a bucket in memory, with points where a process can die, and
with the active faults. A put is whole or nothing, as in S3."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from artifacts.keys import ObjectKey, read_key
from artifacts.store.contract import (
    NoSuchObject,
    SignedRequest,
    StoredObject,
    StoreError,
    StoreUnavailable,
    UploadInParts,
    WrongBytes,
    is_blocked,
)
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.scheduler import START, Scheduler

_URL = "http://store.sim/"


class SimulatedStore:
    """A bucket. The simulator's own calls, which no fiber makes, meet no fault."""

    is_shared = True
    max_put_bytes: int | None = None
    max_object_bytes: int | None = None

    def __init__(self, scheduler: Scheduler, active_faults: ActiveFaults) -> None:
        self._scheduler, self._faults = scheduler, active_faults
        self._stored: dict[ObjectKey, tuple[bytes, datetime]] = {}
        self.requests = 0

    def get(self, now: Callable[[], datetime]) -> SimulatedStore:
        """Return itself: it stands for each process's `ProcessStore`."""
        return self

    # -- for clients and GPU servers ---------------------------------------------------------

    def put_signed(self, request: SignedRequest, content: bytes) -> None:
        """Send a signed PUT. Raises StoreError."""
        key = _key_of(request.url)
        self.write(key, len(content), [content])

    def get_signed(self, url: str) -> bytes:
        """Send a signed GET. Raises StoreError."""
        return b"".join(self.chunks(_key_of(url)))

    # -- the contract ------------------------------------------------------------------------

    def sign_put(self, key: ObjectKey, size: int, seconds: float) -> SignedRequest:
        return SignedRequest("PUT", f"{_URL}{key}", {}, self._now() + timedelta(seconds=seconds))

    def sign_get(
        self, key: ObjectKey, seconds: float, *, content_type: str = "", name: str = ""
    ) -> SignedRequest:
        return SignedRequest("GET", f"{_URL}{key}", {}, self._now() + timedelta(seconds=seconds))

    def find(self, key: ObjectKey) -> StoredObject | None:
        self._begin(f"head {key}")
        found = self._stored.get(key)
        if found is not None and self._happens(self._faults.store_head_lies):
            self._note(f"head of {key} lies")
            found = None
        self._reply("head")
        return None if found is None else StoredObject(key, len(found[0]), found[1])

    def read(self, key: ObjectKey, first: int, length: int) -> bytes:
        self._begin(f"get {key}")
        content = self._content(key)
        self._reply("get")
        return content[first : first + length]

    def chunks(self, key: ObjectKey, first: int = 0) -> Iterator[bytes]:
        self._begin(f"get {key}")
        content = self._content(key)[first:]
        self._reply("get")
        return self._pieces(content)

    def _pieces(self, content: bytes) -> Iterator[bytes]:
        if self._happens(self._faults.store_cut):
            yield content[: len(content) // 2]
            self._note("get cut")
            raise StoreUnavailable("The connection to the store broke.")
        yield content

    def write(self, key: ObjectKey, size: int, chunks: Iterable[bytes]) -> None:
        content = b"".join(chunks)
        if len(content) != size or hashlib.sha256(content).hexdigest() != key.sha256:
            raise WrongBytes("The bytes are not those that were declared.")
        self._begin(f"put {key}")
        if self._happens(self._faults.store_cut):
            self._note("put cut")
            raise StoreUnavailable("The connection to the store broke.")
        found = self._stored.get(key)
        if found is None or is_blocked(StoredObject(key, len(found[0]), found[1])):
            self._stored[key] = (content, self._now())
        self._reply("put")

    def remove(self, key: ObjectKey) -> None:
        self._begin(f"delete {key}")
        self._stored.pop(key, None)
        self._reply("delete")

    def block(self, key: ObjectKey) -> None:
        self._begin(f"block {key}")
        self._stored[key] = (b"", self._now())
        self._reply("block")

    def objects(self, after: ObjectKey | None = None) -> Iterator[StoredObject]:
        self._begin("list")
        listed = sorted(self._stored.items(), key=lambda item: str(item[0]))
        self._reply("list")
        for key, (content, at) in listed:
            if after is None or str(key) > str(after):
                yield StoredObject(key, len(content), at)

    def begin_parts(self, key: ObjectKey, size: int) -> UploadInParts:
        raise StoreError("Simulated clients upload in one piece.")

    def find_parts(self, key: ObjectKey, upload: str, size: int) -> UploadInParts:
        raise NoSuchObject("Simulated clients upload in one piece.")

    def sign_part(self, key: ObjectKey, upload: str, number: int, size: int, seconds: float) -> SignedRequest:
        raise NoSuchObject("Simulated clients upload in one piece.")

    def complete_parts(self, key: ObjectKey, upload: str, size: int) -> None:
        raise NoSuchObject("Simulated clients upload in one piece.")

    def abandon_parts(self, key: ObjectKey, upload: str) -> None:
        """No effect: there are no parts."""

    def drop_unfinished(self, before: datetime) -> int:
        self._begin("list uploads")
        self._reply("list uploads")
        return 0

    def require_own(self) -> None:
        """No effect: all hosts see the same bucket."""

    def check(self) -> str:
        return ""

    # -- steps -------------------------------------------------------------------------------

    def _begin(self, what: str) -> None:
        """Begin a request: the process may die before the store gets it."""
        self.requests += 1
        self._scheduler.point(f"store {what[:40]}")
        if self._scheduler.current() is not None and self._faults.store_down:
            raise StoreUnavailable("The store does not answer.")

    def _reply(self, what: str) -> None:
        """Deliver the reply, or lose it: the process may die after the store acted."""
        self._scheduler.point(f"store {what} done")
        if self._happens(self._faults.store_reply_lost):
            self._note(f"reply to {what} lost")
            raise StoreUnavailable("The store's reply was lost.")

    def _content(self, key: ObjectKey) -> bytes:
        if key not in self._stored:
            raise NoSuchObject("The store has no such object.")
        return self._stored[key][0]

    def _happens(self, chance: float) -> bool:
        return self._scheduler.current() is not None and self._faults.happens(chance)

    def _note(self, what: str) -> None:
        process = self._scheduler.current()
        self._scheduler.note(process.name if process else "", f"store: {what}")

    def _now(self) -> datetime:
        return START + timedelta(seconds=self._scheduler.now)


def _key_of(url: str) -> ObjectKey:
    key = read_key(url.removeprefix(_URL))
    if key is None:
        raise NoSuchObject("The store has no such object.")
    return key
