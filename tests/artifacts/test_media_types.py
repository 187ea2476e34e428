"""Types of files: by their bytes first, then by their sender, then by the schema of their place."""

from __future__ import annotations

import pytest

from artifacts.media_types import fits, type_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)
ZIP = b"PK\x03\x04" + bytes(30)
MP4 = b"\x00\x00\x00\x20ftypisom" + bytes(30)


@pytest.mark.parametrize(
    ("first", "said", "declared", "expected"),
    [
        (PNG, "", (), "image/png"),
        (PNG, "text/html", (), "image/png"),
        (PNG, "image/jpeg", ("image/*",), "image/png"),
        (PNG, "image/jpeg", ("image/jpeg",), None),
        (PNG, "", ("*/*",), "image/png"),
        (b"a,b", "", (), "application/octet-stream"),
        (b"a,b", "text/csv; charset=utf-8", (), "text/csv"),
        (b"a,b", "", ("text/csv",), "text/csv"),
        (b"a,b", "text/html", ("text/csv",), None),
        (b"a,b", "application/octet-stream", ("text/csv",), "text/csv"),
        (b"a,b", "", ("image/png",), None),
        (b"a,b", "", ("image/*",), None),
        (b"a,b", "", ("*/*",), "application/octet-stream"),
        (b"<svg/>", "image/svg+xml", ("image/*",), "image/svg+xml"),
        (ZIP, "model/3mf", ("model/*",), "model/3mf"),
        (ZIP, "image/png", ("image/*",), None),
        (MP4, "", ("audio/mp4",), "video/mp4"),
        (b"", "", (), "application/octet-stream"),
    ],
)
def test_the_type_of_bytes(first: bytes, said: str, declared: tuple[str, ...], expected: str | None) -> None:
    assert type_of(first, said, declared) == expected


@pytest.mark.parametrize(
    ("media_type", "declared", "expected"),
    [
        ("image/PNG; q=1", ("image/png",), True),
        ("image/png", ("image/jpeg", "image/png"), True),
        ("imagex/png", ("image/*",), False),
        ("audio/x-wav", ("audio/wav",), True),
        ("image/png", (), True),
        ("text/html", ("image/*",), False),
    ],
)
def test_a_type_fits_a_declaration(media_type: str, declared: tuple[str, ...], expected: bool) -> None:
    assert fits(media_type, declared) is expected
