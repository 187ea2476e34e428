"""The memory of incomplete bodies is limited; the slowest sender is refused."""

from __future__ import annotations

import requests

from dispatcher_project.asgi import make_application
from dispatcher_project.web.request_limits import SMALL_BYTES, BodyBudget
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.web import Web
from tests.support.upload_sockets import SUBMIT, Sockets, answer_of, sockets

__all__ = ["redis_url", "sockets", "tenant", "web"]


class Body:
    def __init__(self) -> None:
        self.given_up = False

    def give_up(self) -> None:
        self.given_up = True


def test_the_oldest_unfinished_body_is_dropped_first() -> None:
    budget, bodies = BodyBudget(100), [Body() for _ in range(3)]
    for body in bodies:
        budget.hold(body, 40)
    assert [body.given_up for body in bodies] == [True, False, False]
    budget.hold(bodies[1], 60)
    assert [body.given_up for body in bodies] == [True, False, False], "100 bytes are held"
    budget.hold(bodies[2], 41)
    assert [body.given_up for body in bodies] == [True, True, False]


def test_a_complete_body_does_not_count() -> None:
    budget, first, second = BodyBudget(100), Body(), Body()
    budget.hold(first, 80)
    budget.release(first)
    budget.release(first)
    budget.hold(second, 90)
    assert not (first.given_up)
    assert not (second.given_up)


def test_the_only_body_is_never_dropped() -> None:
    budget, body = BodyBudget(100), Body()
    budget.hold(body, 1000)
    assert not body.given_up


def test_a_slow_sender_gets_408_when_others_need_its_memory(web: Web, sockets: Sockets) -> None:
    web.gateway._budget = BodyBudget(SMALL_BYTES)
    slow, quick = (sockets.begin("/admin/login/", SMALL_BYTES) for _ in range(2))
    slow.sendall(b"x" * 200_000)
    while web.gateway._budget._bytes < 200_000:
        requests.get(f"{web.url}/livez", timeout=10)
    quick.sendall(b"x" * 200_000)
    assert answer_of(slow) == (408, "upload_too_slow")
    assert requests.post(web.url + SUBMIT, json={}, timeout=10).status_code == 401, "the others continue"
    assert web.gateway._budget._bytes <= SMALL_BYTES


def test_the_budget_is_a_setting(settings) -> None:
    settings.DISPATCHER = settings.DISPATCHER.__class__(web_body_bytes=12345)
    assert make_application()._budget._most_bytes == 12345
