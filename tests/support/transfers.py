"""Requests for the bytes of artifacts, by hand."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from artifacts.store.contract import SignedRequest
from artifacts.store.local import LocalStore
from tests.support.store_objects import key_of


def head(signed: SignedRequest) -> bytes:
    url = urlsplit(signed.url)
    headers = "".join(f"{name}: {value}\r\n" for name, value in signed.headers.items())
    return f"{signed.method} {url.path}?{url.query} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()


def put(store: LocalStore, data: bytes) -> bytes:
    return head(store.sign_put(key_of(data), len(data), 60))


def get(store: LocalStore, data: bytes) -> bytes:
    return head(store.sign_get(key_of(data), 60))


def files(store: LocalStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file()]
