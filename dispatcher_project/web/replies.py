"""Answers of the web server itself, as they go over the wire: problem+json, and the connection ends."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus

from foundation.http_api.problems import MEDIA_TYPE, Problem

RETRY_SECONDS = 2.0


@cache
def too_many_connections() -> bytes:
    detail = "As many connections are open, of this address or in all, as may be. Try again."
    return _wire(Problem(503, "too_many_connections", detail, retry_after_seconds=RETRY_SECONDS))


@cache
def head_too_slow(seconds: float) -> bytes:
    return _wire(Problem(408, "head_too_slow", f"The request's head did not arrive within {seconds:g} s."))


@cache
def head_too_large(most: int) -> bytes:
    return _wire(Problem(431, "head_too_large", f"The request's head has more than {most} bytes."))


@cache
def url_too_long(most: int) -> bytes:
    return _wire(Problem(414, "url_too_long", f"The URL has more than {most} bytes."))


@cache
def bad_request(detail: str) -> bytes:
    return _wire(Problem(400, "bad_request", detail))


def _wire(problem: Problem) -> bytes:
    content = problem.as_bytes()
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(content)), "Connection": "close"}
    lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in {**headers, **problem.headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content
