"""The proxy to Flower in the admin, with an HTTP server in Flower's place."""

from __future__ import annotations

import dataclasses
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.conf import settings as configured
from django.contrib.auth.models import User
from django.test import Client


class Stub(ThreadingHTTPServer):
    """A fake Flower with one password, which keeps its requests in `asked`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                stub.asked.append((self.command, self.path, dict(self.headers.items()), body))
                known = self.headers["Authorization"] == f"Basic {b64encode(b'admin:sesame').decode()}"
                self.send_response(200 if known else 401)
                self.send_header("Content-Type", "text/css")
                self.send_header("Set-Cookie", "_xsrf=1")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"hi")

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def flower(settings: Any) -> Iterator[Stub]:
    with Stub() as stub:
        address = f"http://127.0.0.1:{stub.server_address[1]}"
        settings.DISPATCHER = dataclasses.replace(configured.DISPATCHER, flower_url=address)
        settings.FLOWER_LOGIN = "admin:sesame"
        thread = threading.Thread(target=stub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield stub
        stub.shutdown()
        thread.join()


def test_a_viewer_gets_the_page_and_flower_gets_the_password_but_no_cookie(
    viewer: Client, flower: Stub
) -> None:
    answer = viewer.get("/admin/flower/static/css/flower.css?v=1")
    assert (answer.status_code, answer.content, answer["Content-Type"]) == (200, b"hi", "text/css")
    assert "Set-Cookie" not in answer.headers
    (command, path, headers, _), *_ = flower.asked
    assert (command, path) == ("GET", "/admin/flower/static/css/flower.css?v=1")
    assert "Cookie" not in headers
    viewer.get("/admin/flower/static/css/flower.css?v=1")
    assert "Cookie" not in flower.asked[-1][2], "nor Flower's own: all users share the session"


def test_the_table_of_tasks_is_read_by_post(viewer: Client, flower: Stub) -> None:
    answer = viewer.post("/admin/flower/tasks/datatable", "draw=1", "application/x-www-form-urlencoded")
    assert answer.status_code == 200
    assert flower.asked[0][3] == b"draw=1"


@pytest.mark.parametrize("page", ["api/worker/shutdown/w", "api/task/revoke/t", "api/task/apply/jobs.work"])
def test_a_superuser_cannot_use_flowers_controls(boss: Client, flower: Stub, page: str) -> None:
    assert boss.post(f"/admin/flower/{page}").status_code == 405
    assert flower.asked == []


def test_users_without_permission_get_a_login_or_403(client: Client, flower: Stub, db: None) -> None:
    answer = client.get("/admin/flower/tasks")
    assert (answer.status_code, answer["Location"]) == (302, "/admin/login/?next=/admin/flower/tasks")
    client.force_login(User.objects.create_user("viewer", is_staff=True))
    assert client.get("/admin/flower/tasks").status_code == 403
    assert flower.asked == []


def test_a_flower_that_does_not_answer_or_refuses_the_password_is_a_502(
    viewer: Client, flower: Stub, settings: Any
) -> None:
    settings.FLOWER_LOGIN = "admin:other"
    answer = viewer.get("/admin/flower/")
    assert (answer.status_code, b"same FLOWER_BASIC_AUTH" in answer.content) == (502, True)
    settings.DISPATCHER = dataclasses.replace(configured.DISPATCHER, flower_url="http://127.0.0.1:1")
    answer = viewer.get("/admin/flower/")
    assert (answer.status_code, b"does not answer" in answer.content) == (502, True)
