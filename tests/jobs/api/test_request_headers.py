"""Headers that would take seconds to parse, or raise, in any view."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from django.test import Client, RequestFactory

from dispatcher_project.web.headers import MAX_ESCAPES, Utf8Request

PATHS = ("/admin/login/", "/api/v1/queue/jobs", "/nowhere", "/static/admin_ui/favicon.svg")
CHARSETS = ("punycode", "idna", "unicode_escape", "utf-7", "zlib", "hex", "rot13", "undefined", "latin-1")
pytestmark = pytest.mark.django_db


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the Cookie headers that Django parses."""
    found: list[str] = []
    monkeypatch.setattr(
        "django.core.handlers.wsgi.parse_cookie", lambda cookie: (found.append(cookie), {})[1]
    )
    return found


@pytest.mark.parametrize("path", PATHS)
def test_cookies_that_take_seconds_are_refused_before_they_are_parsed(
    client: Client, parsed: list[str], path: str
) -> None:
    long = client.get(path, headers={"Cookie": 'sessionid="' + "\\0" * 30_000 + '"'})
    assert (long.status_code, long.json()["code"]) == (431, "cookies_too_large")
    assert "8192" in long.json()["detail"]
    escaped = client.get(path, headers={"Cookie": 'sessionid="' + "\\0" * (MAX_ESCAPES + 1) + '"'})
    assert (escaped.status_code, escaped.json()["code"]) == (400, "bad_cookies")
    assert long["Content-Security-Policy"] == escaped["Content-Security-Policy"]
    assert parsed == []


def test_usual_cookies_are_accepted(client: Client, parsed: list[str]) -> None:
    usual = 'sessionid="' + "\\0" * MAX_ESCAPES + '"; a=' + "x" * 8000
    assert client.get("/admin/login/", headers={"Cookie": usual}).status_code == 200
    assert usual in parsed


def test_the_size_of_cookies_is_a_setting(client: Client, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, web_cookie_bytes=10)
    assert client.get("/nowhere", headers={"Cookie": "a=" + "b" * 9}).status_code == 431


def ask(path: str, kind: str, body: bytes = b"") -> str:
    """Return the status line of the deployed WSGI application."""
    from dispatcher_project.wsgi import application

    result: list[str] = []
    path, _, query = path.partition("?")
    environ = {
        **RequestFactory()._base_environ(),
        "REQUEST_METHOD": "POST" if body else "GET",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": kind,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": BytesIO(body),
    }
    b"".join(application(environ, lambda status, headers: result.append(status)))
    return result[0]


@pytest.mark.parametrize("charset", CHARSETS)
def test_a_query_and_a_form_are_utf_8_whatever_the_client_names(charset: str) -> None:
    for path, kind, body in (
        ("/api/v1/queue/jobs?a=b", "text/html", b""),
        ("/nowhere?a=b", "application/x-www-form-urlencoded", b"username=\\x&password=zz"),
        (
            "/nowhere?a=b",
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="username"\r\n\r\n\\x\r\n--x--\r\n',
        ),
    ):
        assert ask(path, f"{kind}; charset={charset}", body)[:3] in ("401", "404")
    assert ask("/admin/login/?a=b", f"text/html; charset={charset}")[:3] == "200"
    request = Utf8Request(
        {
            **RequestFactory()._base_environ(),
            "REQUEST_METHOD": "POST",
            "CONTENT_TYPE": f"application/x-www-form-urlencoded; charset={charset}",
            "CONTENT_LENGTH": "6",
            "QUERY_STRING": "b=%C3%BC",
            "wsgi.input": BytesIO("a=ü\\x".encode()),
        }
    )
    assert (request.GET["b"], request.POST["a"]) == ("ü", "ü\\x")
