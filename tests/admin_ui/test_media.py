"""Media in payloads and results: which strings are shown as images, linked, or left as text."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from admin_ui.parts.viewer import MAX_FOUND, find_media

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 100).decode()
HOST = "dispatcher.example"


def kinds(value: Any) -> list[tuple[str, str]]:
    return [(media.path, media.kind) for media in find_media(value, host=HOST)]


def test_embedded_images_are_found_with_their_paths_and_decoded() -> None:
    value = {"a": {"images": [PNG, f"data:image/webp;base64,{PNG}"]}, "clip": f"data:video/mp4;base64,{PNG}"}
    assert kinds(value) == [("a/images/0", "image"), ("a/images/1", "image"), ("clip", "video")]
    for media in find_media(value, host=HOST):
        assert media.decoded().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"http://{HOST}/media/1.png", "image"),
        ("/media/1.png", "image"),
        ("/media/clip.MP4?x=1", "video"),
        ("https://cdn.example.com/1.png", "link"),
        (f"https://{HOST}.evil.example/1.png", "link"),
        (f"http://{HOST}:8000/1.png", "link"),
        (f"https://{HOST}@evil.example/1.png", "link"),
        ("data:image/svg+xml;base64,PHN2Zz4=", "file"),
        ("data:text/html;base64,PGI+", "file"),
    ],
)
def test_urls_of_our_host_are_shown_and_those_of_others_are_links(text: str, kind: str) -> None:
    assert kinds([text]) == [("0", kind)]


@pytest.mark.parametrize(
    "text",
    [
        "a sunset",
        "iVBORw0KGgo",  # too short for an image
        "iVBORw0KGgo" + "!" * 100,
        "/etc/passwd",
        f"http://{HOST}/admin/",
        "//evil.example/1.png",
        "/\\evil.example/1.png",
        "javascript:alert(1)//.png",
        "http://[bad/1.png",
        "",
    ],
)
def test_other_strings_are_only_text(text: str) -> None:
    assert kinds({"value": text}) == []


def test_a_long_text_that_only_begins_like_an_image_is_scanned_in_linear_time() -> None:
    """With backtracking it takes minutes, and the test times out."""
    for filling in (" ", "\n", "A"):
        assert kinds({"a": "/9j/" + filling * 990_000 + "!"}) == []
        assert kinds({"a": "/9j/" + filling * 990_000 + "= "}) == [("a", "image")]


def test_invalid_base64_is_refused() -> None:
    [media] = find_media([f"data:image/png;base64,{PNG}*"], host=HOST)
    with pytest.raises(ValueError):
        media.decoded()


def test_the_number_of_images_is_bounded_and_nested_or_empty_values_work() -> None:
    assert len(find_media([PNG] * 100, host=HOST)) == MAX_FOUND
    deep: Any = PNG
    for _ in range(5000):
        deep = [deep]
    assert len(find_media(deep, host=HOST)) == 1
    assert kinds(None) == kinds(3) == kinds({}) == []
