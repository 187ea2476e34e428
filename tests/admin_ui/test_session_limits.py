"""Sessions end with their account, at their maximum age, and when idle; their cookies' attributes."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from admin_ui import middleware
from admin_ui.middleware import BEGAN, SEEN

pytestmark = pytest.mark.django_db
PAGE = "/admin/fleet/"
AUTOMATIC = [
    {"HX-Request": "true"},
    {"Accept": "text/event-stream"},
    {"X-Requested-With": "XMLHttpRequest"},
]


class Clock:
    def __init__(self) -> None:
        self.now = 1_900_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(middleware, "time", clock)
    return clock


@pytest.fixture
def ada(clock: Clock, settings: Any) -> Client:
    settings.DISPATCHER = replace(settings.DISPATCHER, session_seconds=10_000.0, session_idle_seconds=1000.0)
    User.objects.create_superuser("ada", password="correct horse")
    client = Client()
    form = {"username": "ada", "password": "correct horse", "next": "/admin/"}
    assert client.post(reverse("admin:login"), form).status_code == 302
    return client


def is_in(client: Client, **headers: str) -> bool:
    return client.get(PAGE, headers=headers).status_code == 200


def test_a_click_keeps_the_session_and_its_age_ends_it(ada: Client, clock: Clock) -> None:
    for _ in range(11):
        clock.now += 900
        assert is_in(ada)
    clock.now += 900
    assert not is_in(ada)
    assert SEEN not in ada.session


@pytest.mark.parametrize("headers", AUTOMATIC, ids=str)
def test_automatic_requests_of_a_page_do_not_keep_the_session(
    ada: Client, clock: Clock, headers: dict[str, str]
) -> None:
    clock.now += 900
    assert is_in(ada, **headers)
    clock.now += 200
    assert not is_in(ada, **headers)
    assert not is_in(ada)


def test_a_clock_set_back_ends_the_session(ada: Client, clock: Clock) -> None:
    clock.now -= 3600
    assert not is_in(ada)


def test_a_session_older_than_the_limits_starts_with_its_next_request(clock: Clock) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("eve"))
    session = client.session
    for name in (BEGAN, SEEN):
        session.pop(name, None)
    session.save()
    assert is_in(client)
    assert client.session[BEGAN] == clock.now


@pytest.mark.parametrize(
    "change",
    [{"is_active": False}, {"is_staff": False, "is_superuser": False}, "password", "delete"],
    ids=str,
)
def test_a_session_ends_with_its_account(ada: Client, change: Any) -> None:
    user = User.objects.get()
    if change == "password":
        user.set_password("another")
        user.save()
    elif change == "delete":
        user.delete()
    else:
        User.objects.update(**change)
    assert not is_in(ada)
    assert ada.get("/api/v1/queue/stats").status_code == 401
    assert ada.get("/admin/pulse/").status_code == 302


def run_with(code: str, **environment: str) -> str:
    """Run code in a new process, because settings are read once."""
    import os

    given = {**os.environ, "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.test", **environment}
    imports = "from django.conf import settings as s; from django.test import Client"
    program = f"import django; django.setup(); {imports}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


COOKIES = """[s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE,
    s.SESSION_COOKIE_HTTPONLY, s.CSRF_COOKIE_HTTPONLY, s.SESSION_COOKIE_SAMESITE, s.SECURE_HSTS_SECONDS,
    s.SESSION_COOKIE_PATH, s.SESSION_COOKIE_DOMAIN, s.SESSION_COOKIE_AGE]"""


def test_cookies_and_hsts_without_https(settings: Any) -> None:
    assert not settings.DISPATCHER.public_url.startswith("https:")
    assert eval(COOKIES, {"s": settings}) == (
        ["sessionid", "csrftoken", False, False, True, True, "Lax", 0, "/", None, 43_200]
    )


def test_cookies_hsts_and_the_admins_path_in_a_process_of_these_settings() -> None:
    """HSTS is sent over https only."""
    code = f"""
from django.urls import reverse
from admin_ui import FLOWER_PREFIX
print([
    {COOKIES},
    [Client().get("/livez", secure=secure).get("Strict-Transport-Security") for secure in (True, False)],
    [reverse("admin:login"), reverse("dashboard:fleet"), reverse("flower"), FLOWER_PREFIX,
     Client().get("/admin/login/").status_code]])"""
    said = run_with(
        code,
        DISPATCHER_PUBLIC_URL="https://gpu.example.com",
        DISPATCHER_SESSION_SECONDS="60",
        DISPATCHER_ADMIN_PATH="desk/7f3a",
    )
    cookies, hsts, paths = literal_eval(said)
    assert cookies == (
        ["__Host-sessionid", "__Host-csrftoken", True, True, True, True, "Lax", 31_536_000, "/", None, 60]
    )
    assert hsts == ["max-age=31536000", None]
    assert paths == ["/desk/7f3a/login/", "/desk/7f3a/fleet/", "/desk/7f3a/flower/", "desk/7f3a/flower", 404]


@pytest.mark.parametrize("path", ["", "/admin", "admin/", "api", "api/v1", "static", "a b", "ä", "a//b", "."])
def test_an_invalid_admin_path_is_refused_at_start(path: str) -> None:
    from django.core.exceptions import ImproperlyConfigured

    from dispatcher_project.settings.dispatcher import DispatcherSettings

    with pytest.raises(ImproperlyConfigured, match="DISPATCHER_ADMIN_PATH"):
        DispatcherSettings(admin_path=path)


def test_the_admin_answers_under_its_own_hosts_only(settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, admin_hosts=("admin.example.com",))
    for path in ("/admin", "/admin/", "/admin/login/", "/admin/flower/", "/admin/fleet/"):
        assert Client().get(path, headers={"Host": "api.example.com"}).status_code == 404
    form = {"username": "a", "password": "b"}
    assert Client().post("/admin/login/", form, headers={"Host": "api.example.com:8000"}).status_code == 404
    assert Client().get("/admin/login/", headers={"Host": "admin.example.com:8000"}).status_code == 200
    assert Client().get("/api/v1/schema", headers={"Host": "api.example.com"}).status_code == 200
    assert Client().get("/administration", headers={"Host": "admin.example.com"}).status_code == 404
