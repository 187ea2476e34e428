"""Keys of objects in a store: `a/<tenant>/<sha256>`. Nothing of a client's names is in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "a/"
"""Begin of all keys; a bucket may hold other things beside them."""
SHA256 = r"[0-9a-f]{64}"
_SHA256 = re.compile(rf"{SHA256}\Z")
_KEY = re.compile(rf"a/([1-9][0-9]{{0,18}})/({SHA256})\Z")


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """The key of one object. Raises ValueError for a tenant that is not positive, or for another hash than 64
    hexadecimal digits in lower case."""

    tenant_id: int
    sha256: str

    def __post_init__(self) -> None:
        if self.tenant_id < 1 or not _SHA256.match(self.sha256):
            raise ValueError(f"not a key: {self.tenant_id}, {self.sha256[:80]!r}")

    def __str__(self) -> str:
        return f"{PREFIX}{self.tenant_id}/{self.sha256}"


def read_key(text: str) -> ObjectKey | None:
    """Return the key, or None for any other text, such as one with `..` in it."""
    found = _KEY.match(text)
    return ObjectKey(int(found[1]), found[2]) if found else None
