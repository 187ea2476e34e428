"""Media types of bytes: recognised from them, and compared with those that a schema declares.

Recognised bytes count more than what a client, a file's name or a header says of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from artifacts.uploads import UNKNOWN_TYPE, recognised_type

_SAME: tuple[frozenset[str], ...] = tuple(
    frozenset(one)
    for one in (
        ("image/jpeg", "image/jpg"),
        ("image/tiff", "image/tif"),
        ("audio/mpeg", "audio/mp3"),
        ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"),
        ("audio/flac", "audio/x-flac"),
        ("audio/aac", "audio/x-aac"),
        # one container for sound and film
        ("audio/mp4", "video/mp4", "audio/x-m4a", "audio/m4a", "video/x-m4v", "video/quicktime"),
        ("audio/ogg", "video/ogg", "application/ogg"),
        ("audio/webm", "video/webm", "video/x-matroska"),
        ("application/gzip", "application/x-gzip"),
    )
)
_ARCHIVE = "application/zip"
"""Many formats are archives of this kind, such as 3MF and those of office programs."""


def bare(media_type: str) -> str:
    """Return a media type without parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def fits(media_type: str, declared: Iterable[str]) -> bool:
    """Return True if a type is among declared ones, which may be like ``image/*``. declared: none allow
    all."""
    found, wanted = bare(media_type), [bare(one) for one in declared]
    names = next((same for same in _SAME if found in same), frozenset({found}))
    return not wanted or any(_covers(one, name) for one in wanted for name in names)


def _covers(declared: str, name: str) -> bool:
    if declared in ("*/*", name):
        return True
    return declared.endswith("/*") and name.startswith(declared[:-1])


def type_of(first_bytes: bytes, said: str, declared: Iterable[str] = ()) -> str | None:
    """Return the type of bytes, by their beginning; None if it is not one of the declared ones.

    said: what the sender calls it; counts only for bytes that are not recognised. declared: by the schema of
    their place; one of them is taken where nothing else is known.
    """
    allowed = list(declared)
    found = recognised_type(first_bytes)
    if found == _ARCHIVE and said and bare(said) != UNKNOWN_TYPE and not said.startswith(_RECOGNISED):
        found = bare(said)
    if found != UNKNOWN_TYPE:
        return found if fits(found, allowed) else None
    if said and bare(said) != UNKNOWN_TYPE:
        return bare(said) if fits(said, allowed) else None
    if not allowed:
        return UNKNOWN_TYPE
    exact = [bare(one) for one in allowed if not one.rstrip().endswith("*")]
    if any(bare(one) == "*/*" for one in allowed):
        return UNKNOWN_TYPE
    return exact[0] if exact and not exact[0].startswith(_RECOGNISED) else None


_RECOGNISED = ("image/", "audio/", "video/", "font/")
"""Types whose usual formats are recognised: other bytes are not of them, unless their sender says so."""
