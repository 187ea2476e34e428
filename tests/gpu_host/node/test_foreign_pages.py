"""A web page in a browser on the machine of a node without a token: it starts no run and reads nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu_host.node.caller import Caller

Start = Callable[..., Caller]
JSON = "application/json"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Content-Type": "text/plain"},
        {"Origin": "http://evil.example", "Content-Type": JSON},
        {"Origin": "null", "Content-Type": JSON},
        {"Sec-Fetch-Site": "cross-site", "Content-Type": JSON},
        {"Sec-Fetch-Site": "same-site", "Content-Type": JSON},
        {"Host": "evil.example", "Content-Type": JSON},
        {"Host": "evil.example:9001", "Origin": "http://evil.example:9001", "Content-Type": JSON},
        {"Host": "127.0.0.1.evil.example", "Content-Type": JSON},
        {"Host": "[evil", "Content-Type": JSON},
        {"Host": "127.0.0.1:1", "Origin": "http://127.0.0.1:2", "Content-Type": JSON},
        {"Host": "localhost", "Origin": "http://localhost", "Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "none", "Content-Type": "text/plain"},
    ],
    ids=str,
)
def test_a_foreign_page_starts_no_run(start: Start, headers: dict[str, str]) -> None:
    caller = start()
    answer = caller.ask("POST", "/run", {"seconds": 0}, headers)
    assert (answer.status, answer.body["code"]) == (403, "stranger")
    assert caller.node.runs() == []


@pytest.mark.parametrize("path", ["/runs", "/health", "/status/x", "/faults"])
def test_a_request_under_a_foreign_host_name_is_refused(start: Start, path: str) -> None:
    assert start().ask("GET", path, headers={"Host": "evil.example"}).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},  # as the dispatcher, without a content type
        {"Content-Type": "application/x-www-form-urlencoded"},  # `curl -d`
        {"Host": "localhost:9001", "Content-Type": JSON},
        {"Host": "[::1]:9001", "Content-Type": JSON},
        {"Host": "10.1.2.3", "Content-Type": JSON},
        {
            "Host": "localhost:9001",
            "Origin": "http://localhost:9001",
            "Content-Type": f"{JSON}; charset=utf-8",
        },
    ],
    ids=str,
)
def test_others_on_this_machine_are_served(start: Start, headers: dict[str, str]) -> None:
    assert start().ask("POST", "/run", {"seconds": 0}, headers).status == 200


def test_with_a_token_any_host_name_is_accepted(start: Start) -> None:
    headers = {"Host": "gpu-box.example", "Authorization": "Bearer secret"}
    assert start(token="secret").ask("POST", "/run", {"seconds": 0}, headers).status == 200


def test_an_open_node_accepts_any_host_name_but_no_foreign_origin(start: Start) -> None:
    caller = start(open_to_all=True)
    named = {"Host": "gpu-box"}
    assert caller.ask("POST", "/run", {"seconds": 0}, named).status == 200
    assert (
        caller.ask("POST", "/run", {"seconds": 0}, {**named, "Origin": "http://evil.example"}).status == 403
    )
