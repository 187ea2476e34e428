"""Signed URLs in texts of GPU servers are made useless."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from foundation.log_lines import safe_text
from foundation.signed_urls import SignatureFilter, without_signatures
from gpus.errors import BadInput
from gpus.protocol import Progress, parse_progress

FOLDER = "http://box:8000/store/a/7/ab?method=GET&expires=9&signature=SECRET"
S3 = "https://films.s3.amazonaws.com/a/7/ab?X-Amz-Expires=60&X-Amz-Signature=SECRET&x-id=GetObject"


@pytest.mark.parametrize(
    "url",
    [
        FOLDER,
        S3,
        FOLDER.replace("&", "&amp;"),
        FOLDER.replace("&", "\\u0026"),
        FOLDER.partition("?")[0] + "?signature=SECRET",
        f"http://box/fetch?url={quote(FOLDER, safe='')}",
        f"http://box/fetch?url={quote(FOLDER, safe='').lower()}".replace("secret", "SECRET"),
    ],
)
@pytest.mark.parametrize("text", ["could not read {}", "<a href='{}'>", json.dumps({"url": "{}"})])
def test_the_signature_is_left_out(url: str, text: str) -> None:
    quoted = text.replace("{}", url)
    assert "SECRET" in quoted
    found = without_signatures(quoted)
    assert "SECRET" not in found
    assert found.replace("…", "SECRET") == quoted, "the rest stays"


def in_pieces(*pieces: str) -> str:
    found = SignatureFilter()
    return "".join(found.filter(piece) for piece in pieces)


@pytest.mark.parametrize("url", [FOLDER, S3, FOLDER.replace("&", "\\u0026"), quote(FOLDER, safe="")])
def test_a_signature_that_is_cut_anywhere_is_left_out(url: str) -> None:
    text = f"see {url} and {url}\nend"
    whole = without_signatures(text)
    assert "SECRET" not in whole
    for cut in range(len(text) + 1):
        assert in_pieces(text[:cut], text[cut:]) == whole, cut
        assert in_pieces(text[:cut], "", text[cut : cut + 3], text[cut + 3 :]) == whole, cut
    assert in_pieces(*text) == whole


def test_pieces_of_other_texts_stay() -> None:
    text = "?signature &signature signature=1 %3 \\u00 100 % & more; signatures"
    assert in_pieces(*text) == text


def test_other_texts_stay() -> None:
    for text in ("", "signature=abc of a song", "wrong signature", "https://x/?a=1"):
        assert without_signatures(text) == text


def test_errors_progress_and_log_lines_have_no_signatures() -> None:
    error = BadInput(f"could not read {FOLDER}", detail=f"Traceback: {S3}")
    assert "SECRET" not in error.message + error.detail + str(error)
    assert "SECRET" not in safe_text(f"GET {S3}")
    progress = parse_progress({"value": 0.5, "text": f"reading {FOLDER}"})
    assert progress is not None
    assert progress == Progress(0.5, f"reading {FOLDER.replace('SECRET', '…')}")
