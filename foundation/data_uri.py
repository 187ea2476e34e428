"""`data:` URIs (RFC 2397): the bytes that a text carries itself."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

SCHEME = "data:"
_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,63}/[A-Za-z0-9!#$&^_.+-]{1,63}\Z")
_BASE64 = "base64"
_LONGEST_HEAD = 1000
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class BadDataUri(ValueError):
    """The text begins like a `data:` URI, and is none."""


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the data. media_type: as declared, without parameters; empty if none is.
    length: of the head in the text, with its comma."""

    media_type: str
    is_base64: bool
    length: int


def is_data_uri(text: str) -> bool:
    return text[: len(SCHEME)].lower() == SCHEME


def read_head(text: str) -> Head:
    """Parse the beginning of a `data:` URI. text: at least its first `_LONGEST_HEAD` characters. Raises
    BadDataUri."""
    comma = text.find(",", 0, _LONGEST_HEAD)
    if not is_data_uri(text) or comma < 0:
        raise BadDataUri("the data: URI has no comma before its data")
    media_type, *parameters = text[len(SCHEME) : comma].split(";")
    media_type = media_type.strip().lower()
    if media_type and not _TYPE.match(media_type):
        raise BadDataUri("the data: URI has a malformed media type")
    is_base64 = bool(parameters) and parameters[-1].strip().lower() == _BASE64
    return Head(media_type, is_base64, comma + 1)


def read_data_uri(text: str) -> tuple[str, bytes]:
    """Return the declared media type (empty if none is) and the bytes. Raises BadDataUri."""
    head = read_head(text)
    data = text[head.length :]
    if head.is_base64:
        return head.media_type, decode_base64(data)
    return head.media_type, decode_percent(data)


def decode_percent(text: str) -> bytes:
    """Decode percent-encoded text. Raises BadDataUri."""
    if _ESCAPE.search(text) or not text.isascii():
        raise BadDataUri("the data of the data: URI is not percent-encoded")
    return unquote_to_bytes(text)


def decode_base64(text: str) -> bytes:
    """Decode base64, or its URL-safe alphabet, with all its padding. Raises BadDataUri."""
    try:
        raw = text.encode("ascii")
        if b"-" in raw or b"_" in raw:
            raw = raw.replace(b"-", b"+").replace(b"_", b"/")
        return base64.b64decode(raw, validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise BadDataUri("the data is not base64 (RFC 4648, with padding and without line breaks)") from None
