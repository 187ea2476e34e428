"""Password guesses: limited by account and address, and in the web's threads and CPU that they take."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.contrib.auth import hashers
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from structlog.testing import capture_logs

from foundation.network import network_of
from jobs.models import SignInFailure
from jobs.operations import sign_in
from jobs.operations.sign_in import BoundedHasher, HashingSlots, PasswordsBusy
from jobs.reports import counters
from tests.support.servers.web import running_web

pytestmark = pytest.mark.django_db
BROWSER = {"Accept": "text/html,*/*;q=0.8"}
LOGIN = "/admin/login/"


@pytest.fixture
def ada() -> User:
    return User.objects.create_superuser("ada", password="correct horse")


def post(account: str, password: str, *, address: str = "198.51.100.1", **headers: str) -> Any:
    form = {"username": account, "password": password, "next": "/admin/"}
    return Client().post(LOGIN, form, REMOTE_ADDR=address, headers=headers)


def set_limits(settings: Any, **limits: float) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, **limits)


def test_after_five_failures_sign_ins_to_an_account_are_refused_without_hashing(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [post("ada", f"guess {number}").status_code for number in range(5)] == [200] * 5
    monkeypatch.setattr(hashers, "check_password", None)
    monkeypatch.setattr(hashers, "make_password", None)
    refused = post("ada", "correct horse", Accept="text/html")
    assert refused.status_code == 429
    assert 800 < int(refused["Retry-After"]) <= 900
    assert "5 sign-ins to this account from this address failed" in refused.content.decode()
    problem = post("ADA", "correct horse")
    assert (problem.status_code, problem.json()["code"]) == (429, "sign_in_refused")
    assert counters.read(counters.Name.SIGN_INS_REFUSED) == [("", "account", 2)]


def test_spellings_of_a_name_count_as_one_account(ada: User) -> None:
    spellings = ("ada ", " ada", "\tada", "ada\u00a0", "\uff41da", "\u3000Ada\r\n")
    answers = [post(name, "guess").status_code for name in spellings]
    assert answers == [200] * 5 + [429]
    assert SignInFailure.objects.count() == 1


def test_the_lock_holds_for_one_address_and_ends(ada: User, settings: Any) -> None:
    for _ in range(6):
        post("ada", "guess")
    assert post("ada", "correct horse", address="198.51.100.2").status_code == 302
    assert post("ada", "correct horse").status_code == 429
    past = timezone.now() - timedelta(seconds=settings.DISPATCHER.sign_in_lock_seconds + 1)
    SignInFailure.objects.update(last_at=past)
    assert post("ada", "guess").status_code == 200
    assert SignInFailure.objects.get().count == 1
    assert post("ada", "correct horse").status_code == 302
    assert not SignInFailure.objects.exists()


def test_refused_tries_do_not_prolong_the_pause(ada: User) -> None:
    for _ in range(5):
        post("ada", "guess")
    before = SignInFailure.objects.get()
    for _ in range(3):
        assert post("ada", "guess").status_code == 429
    after = SignInFailure.objects.get()
    assert (after.count, after.last_at) == (before.count, before.last_at)


def test_a_long_name_is_cut_before_it_is_normalized(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        sign_in.unicodedata, "normalize", lambda form, text: (seen.append(len(text)), text)[1]
    )
    sign_in.account_digest("a" + "\u0301\u0316" * 400_000)
    assert seen == [sign_in.LONGEST_ACCOUNT]


def test_failures_in_the_future_do_not_lock(ada: User) -> None:
    for _ in range(5):
        post("ada", "guess")
    SignInFailure.objects.update(last_at=timezone.now() + timedelta(days=30))
    assert post("ada", "guess").status_code == 200
    assert SignInFailure.objects.get().count == 1
    SignInFailure.objects.update(last_at=timezone.now() + timedelta(days=30))
    assert sign_in.drop_old_failures(timezone.now()) == 1


def test_one_address_cannot_guess_at_many_accounts(ada: User, settings: Any) -> None:
    set_limits(settings, sign_in_failures_per_address=8)
    assert [post(f"user{number}", "guess").status_code for number in range(8)] == [200] * 8
    refused = post("ada", "correct horse")
    assert refused.status_code == 429
    assert "8 sign-ins from this address failed" in refused.json()["detail"]
    assert post("ada", "correct horse", address="198.51.100.2").status_code == 302
    assert counters.read(counters.Name.SIGN_INS_REFUSED) == [("", "address", 1)]


def test_all_addresses_of_an_ipv6_network_count_as_one(ada: User, settings: Any) -> None:
    for number in range(5):
        post("ada", "guess", address=f"2001:db8:1:2::{number}")
    assert post("ada", "correct horse", address="2001:db8:1:2:ffff::1").status_code == 429
    assert post("ada", "correct horse", address="2001:db8:1:3::1").status_code == 302
    assert network_of("::ffff:198.51.100.1") == "198.51.100.1"


def test_an_unknown_account_is_limited_like_a_known_one(ada: User) -> None:
    for account in ("ada", "unknown"):
        tries = [post(account, "guess", address=f"198.51.100.{account != 'ada'}") for _ in range(6)]
        assert [one.status_code for one in tries] == [200] * 5 + [429]
        assert "Retry-After" in tries[-1]


def test_an_account_that_is_not_staff_is_limited_even_with_its_password() -> None:
    User.objects.create_user("bob", password="correct horse")
    assert [post("bob", "correct horse").status_code for _ in range(6)] == [200] * 5 + [429]


def test_an_unknown_name_is_neither_stored_nor_logged(ada: User) -> None:
    with capture_logs() as lines:
        post("my-secret-password", "ada")
        post("ada", "guess")
    assert "my-secret-password" not in str(lines)
    assert "my-secret-password" not in str(SignInFailure.objects.values())
    failed = [(line["user"], line["address"]) for line in lines if line["event"] == "sign_in_failed"]
    assert failed == [(None, "198.51.100.1"), ("ada", "198.51.100.1")]


def test_expired_failures_are_deleted(settings: Any) -> None:
    now = timezone.now()
    lock = timedelta(seconds=settings.DISPATCHER.sign_in_lock_seconds)
    for address, at in (("a", now - lock), ("b", now - lock / 2)):
        SignInFailure.objects.create(address=address, account="x", count=1, last_at=at)
    assert sign_in.drop_old_failures(now) == 1
    assert SignInFailure.objects.get().address == "b"


def test_an_operator_unlocks_an_address(ada: User) -> None:
    for _ in range(5):
        post("ada", "guess")
    assert sign_in.unlock("198.51.100.2", by="cli:ann") == 0
    assert sign_in.unlock("198.51.100.1", by="cli:ann") == 1
    assert post("ada", "correct horse").status_code == 302


# -- threads and CPU of the web -------------------------------------------------------------------


def test_the_numbers_of_hashes_at_once_and_waiting_are_bounded(settings: Any) -> None:
    set_limits(settings, passwords_at_once=2, passwords_waiting=3)
    slots, go, running, most, lock = HashingSlots(), threading.Event(), 0, 0, threading.Lock()

    def hash_one() -> str:
        nonlocal running, most
        try:
            with slots.slot():
                with lock:
                    running += 1
                    most = max(most, running)
                go.wait(30)
                with lock:
                    running -= 1
        except PasswordsBusy as busy:
            if busy.retry_after_seconds and not go.is_set():
                refused.release()
            return "refused"
        return "hashed"

    refused = threading.Semaphore(0)
    with ThreadPoolExecutor(20) as pool:
        tries = [pool.submit(hash_one) for _ in range(20)]
        were_refused = all(refused.acquire(timeout=10) for _ in range(15))
        go.set()
        assert were_refused
        assert Counter(one.result() for one in tries) == {"hashed": 5, "refused": 15}
    assert most == 2


def test_a_busy_sign_in_is_a_503_and_does_not_count_as_a_failure(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PASSWORD_HASHERS = ["jobs.operations.sign_in.BoundedHasher"]
    set_limits(settings, passwords_at_once=1, passwords_waiting=0)
    with sign_in._slots.slot():
        busy = post("ada", "correct horse", Accept="text/html")
        boss = Client()
        boss.force_login(ada)
        form = {"username": "new", "usable_password": "true", "password1": "a" * 12, "password2": "a" * 12}
        made = boss.post(reverse("admin:auth_user_add"), form, headers=BROWSER)
    assert (busy.status_code, busy["Retry-After"]) == (503, "2")
    assert (made.status_code, made["Retry-After"]) == (503, "2")
    assert not SignInFailure.objects.exists()


def test_the_bounded_hasher_uses_djangos_default_algorithm() -> None:
    from dispatcher_project.settings import base

    assert base.PASSWORD_HASHERS == ["jobs.operations.sign_in.BoundedHasher"]
    assert issubclass(BoundedHasher, hashers.PBKDF2PasswordHasher)
    assert BoundedHasher.algorithm == "pbkdf2_sha256"
    assert BoundedHasher.iterations == hashers.PBKDF2PasswordHasher.iterations >= 1_000_000


@pytest.mark.django_db(transaction=True)
def test_forty_guesses_at_once_do_not_block_other_requests(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PASSWORD_HASHERS = ["jobs.operations.sign_in.BoundedHasher"]
    monkeypatch.setitem(settings.DATABASES["default"], "CONN_MAX_AGE", 0)
    go, hashing = threading.Event(), threading.Semaphore(0)

    def slow(self: Any, *_: Any) -> str:
        hashing.release()
        assert go.wait(60)
        return "x"

    monkeypatch.setattr(hashers.PBKDF2PasswordHasher, "encode", slow)
    cookie = "x" * 32

    def guess(number: int) -> int:
        form = {"username": f"user{number}", "password": "guess", "csrfmiddlewaretoken": cookie}
        return requests.post(
            f"{web.url}{LOGIN}", data=form, cookies={"csrftoken": cookie}, timeout=120
        ).status_code

    with running_web() as web, ThreadPoolExecutor(40) as pool:
        guesses = [pool.submit(guess, number) for number in range(40)]
        assert hashing.acquire(timeout=60)
        other = requests.get(f"{web.url}/readyz", timeout=30)
        until = time.monotonic() + 60
        while sum(one.done() for one in guesses) < 38 and time.monotonic() < until:
            go.wait(0.02)
        early = Counter(one.result() for one in guesses if one.done())
        go.set()
        [one.result() for one in guesses]
    assert other.status_code in (200, 503)
    assert early == {429: 38}


def test_the_page_is_the_same_for_known_and_unknown_accounts(ada: User) -> None:
    def page_for(account: str) -> str:
        page = post(account, "guess", Accept="text/html").content.decode()
        return re.sub(r'value="[^"]*"|nonce="[^"]*"', "", page)

    assert page_for("ada") == page_for("eve")


def test_the_page_of_failed_sign_ins_names_only_existing_accounts(ada: User) -> None:
    post("ada", "guess")
    post("not-an-account", "guess")
    client = Client()
    client.force_login(ada)
    page = client.get("/admin/jobs/signinfailure/").content.decode()
    assert "ailed sign-ins" in page
    assert "ign in failure" not in page
    assert "no such account" in page
    assert "not-an-account" not in page
    rows = {row.account_name for row in client.get("/admin/jobs/signinfailure/").context["cl"].result_list}
    assert rows == {"ada", "no such account"}
    failure = SignInFailure.objects.get(account=sign_in.account_digest("ada"))
    assert ">ada<" in client.get(f"/admin/jobs/signinfailure/{failure.pk}/change/").content.decode()
