"""Attacks on the admin's login."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from verification.hostile.attacks.base import ANY_CLIENT, Attack
from verification.hostile.wire import Answer, ask, flood

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

_LOGIN = "/admin/login/"
_TOKEN = re.compile(rb'name="csrfmiddlewaretoken" value="([^"]+)"')


def log_in(url: str, user: str, password: str, *, timeout: float = 30.0) -> tuple[Answer, str]:
    """Return the answer, and the cookies after it."""
    page = ask(url, "GET", _LOGIN, timeout=timeout)
    found = _TOKEN.search(page.body)
    cookie = page.headers.get("set-cookie", "").partition(";")[0]
    form = {"username": user, "password": password, "next": "/admin/"}
    form |= {"csrfmiddlewaretoken": found.group(1).decode()} if found else {}
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
    answer = ask(url, "POST", _LOGIN, body=urlencode(form).encode(), headers=sent, timeout=timeout)
    session = re.search(r"(\w*sessionid)=([^;]+)", answer.headers.get("set-cookie", ""))
    return answer, f"{cookie}; {session.group(1)}={session.group(2)}" if session else cookie


class Logins(Attack):
    id, title, attacker = "s06", "40 connections that guess passwords at /admin/login/", ANY_CLIENT
    seconds = 10.0

    def play(self, env: Environment, until: float) -> None:
        users = ("admin", "root", "operator", "nobody")

        def once(number: int) -> None:
            answer, _ = log_in(env.url, users[number % len(users)], f"guess-{number}")
            self.note(answer, "POST /admin/login/")

        self.figures["guesses"] = flood(once, workers=40, until=until, at_most=1500)
        refused = sum(times for label, times in self.answers.items() if label[:3] in ("429", "403", "503"))
        self.figures["refused"] = refused
        self.must(refused > 0, "no guess was refused")


class LongPasswords(Attack):
    id, title, attacker = "n27", "passwords of 2 MB, and forms with 5,000 fields", ANY_CLIENT
    seconds = 6.0

    def play(self, env: Environment, until: float) -> None:
        def once(number: int) -> None:
            if number % 2:
                answer, _ = log_in(env.url, "nobody", "x" * 2_000_000)
            else:
                body = "&".join(f"f{n}=1" for n in range(5000)).encode()
                sent = {"Content-Type": "application/x-www-form-urlencoded"}
                answer = ask(env.url, "POST", _LOGIN, body=body, headers=sent)
            self.note(answer, "POST /admin/login/")

        flood(once, workers=8, until=until, at_most=80)


ATTACKS = (Logins, LongPasswords)
