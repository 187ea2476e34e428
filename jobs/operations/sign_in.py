"""Guesses of passwords, limited by account and address, and by address alone; and how many passwords are
hashed at once.

The limit of an account counts by address, so that an attacker elsewhere can't lock its owner out. A try is
counted before its password is checked: tries at once can't get past the limit.
"""

from __future__ import annotations

import threading
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db import transaction
from django.db.models import Max, Q, Sum
from django.utils.crypto import salted_hmac

from foundation.network import network_of
from gpus.registry.audit import record
from jobs.domain.errors import Refused
from jobs.models import SignInFailure
from jobs.reports import counters

AT_ONCE_PER_ADDRESS = 2
LONGEST_ACCOUNT = 150
"""As Django's accounts. To normalize a text of combining marks takes the square of its length."""
CLOCK_TOLERANCE = timedelta(minutes=1)
"""A failure later than that was written by a clock that was wrong since set right: it counts no more."""
MOST_ACCOUNTS_NAMED = 10_000
"""Accounts whose digests are compared for a page of failures; each takes about ten microseconds."""


class SignInRefused(Refused):
    """Too many failed sign-ins. limit: `account` or `address`."""

    code = "sign_in_refused"
    status = 429

    def __init__(self, limit: str, why: str, left: timedelta) -> None:
        minutes = max(1, round(left.total_seconds() / 60))
        super().__init__(
            f"{why}, the most before a pause. Try again in {minutes} min.",
            retry_after_seconds=left.total_seconds(),
        )
        self.limit = limit


class SignInTooMany(Refused):
    """Too many sign-ins from one address at once."""

    code = "sign_in_busy"
    status = 429


class SignInsInFlight:
    """Sign-ins under way, by address. One for each process: it belongs to its sign-in page."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def enter(self, address: str) -> Iterator[None]:
        """Raises SignInTooMany."""
        with self._lock:
            if self._under_way[address] >= AT_ONCE_PER_ADDRESS:
                raise SignInTooMany(
                    f"{AT_ONCE_PER_ADDRESS} sign-ins from this address are under way, the most at once.",
                    retry_after_seconds=1.0,
                )
            self._under_way[address] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[address] -= 1
                self._under_way += Counter()  # addresses without one are forgotten


def account_digest(account: str) -> str:
    """Return one digest for all spellings that the sign-in form takes for the same account."""
    folded = unicodedata.normalize("NFKC", account.strip()[:LONGEST_ACCOUNT]).strip().casefold()
    return salted_hmac("jobs.sign_in", folded, algorithm="sha256").hexdigest()


def account_names(digests: Collection[str]) -> dict[str, str]:
    """Names of existing accounts, by those of the digests that are theirs."""
    names = get_user_model().objects.order_by("pk").values_list("username", flat=True)[:MOST_ACCOUNTS_NAMED]
    named = ((account_digest(name), name) for name in names)
    return {digest: name for digest, name in named if digest in digests}


def count_try(address: str, account: str, now: datetime) -> None:
    """Raises SignInRefused where a limit is reached; such a try does not count. address: as `network_of` has
    it."""
    most = settings.DISPATCHER
    lock = timedelta(seconds=most.sign_in_lock_seconds)
    digest = account_digest(account)
    with transaction.atomic():
        counted = {"last_at__gt": now - lock, "last_at__lte": now + CLOCK_TOLERANCE}
        failed = SignInFailure.objects.filter(address=address, **counted)
        total = failed.aggregate(total=Sum("count"))["total"] or 0
        if total >= most.sign_in_failures_per_address:
            last = failed.aggregate(last=Max("last_at"))["last"] or now
            raise SignInRefused("address", f"{total} sign-ins from this address failed", last + lock - now)
        row, _ = SignInFailure.objects.select_for_update().get_or_create(
            address=address, account=digest, defaults={"last_at": now}
        )
        if not now - lock < row.last_at <= now + CLOCK_TOLERANCE:
            row.count = 0
        if row.count >= most.sign_in_failures:
            why = f"{row.count} sign-ins to this account from this address failed"
            raise SignInRefused("account", why, row.last_at + lock - now)
        row.count += 1
        row.last_at = now
        row.save(update_fields=["count", "last_at"])


def forget_try(address: str, account: str) -> None:
    """The password of the last try was not looked at."""
    row = SignInFailure.objects.filter(address=address, account=account_digest(account)).first()
    if row is not None and row.count > 1:
        SignInFailure.objects.filter(pk=row.pk, count=row.count).update(count=row.count - 1)
    elif row is not None:
        row.delete()


def forget_failures(address: str, account: str) -> None:
    """It succeeded."""
    SignInFailure.objects.filter(address=address, account=account_digest(account)).delete()


def unlock(address: str | None = None, *, by: str) -> int:
    """Forget the failures of an address, or all. Return how many rows there were."""
    rows, name = SignInFailure.objects.all(), "*"
    if address is not None:
        name = network_of(address)
        rows = rows.filter(address=name)
    with transaction.atomic():
        count = rows.delete()[0]
        record(by, "unlock_sign_in", f"address:{name}", rows=count)
    return count


def drop_old_failures(now: datetime) -> int:
    """Those that count no more."""
    lock = timedelta(seconds=settings.DISPATCHER.sign_in_lock_seconds)
    is_old = Q(last_at__lte=now - lock) | Q(last_at__gt=now + lock)
    return SignInFailure.objects.filter(is_old).delete()[0]


def note_refusal(refused: Refused) -> None:
    """For /metrics."""
    limit = refused.limit if isinstance(refused, SignInRefused) else "at_once"
    counters.add_by_code_if_possible(counters.Name.SIGN_INS_REFUSED, {limit: 1})


# -- hashing -----------------------------------------------------------------------------------------

RETRY_SECONDS = 2.0


class PasswordsBusy(Refused):
    """Too many passwords are being checked."""

    code = "sign_in_busy"
    status = 503


class HashingSlots:
    """Limits the password hashes of a process: `passwords_at_once` threads hash, `passwords_waiting` wait. A
    hash takes a core for about half a second, and a sign-in that waits holds a thread of the web."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hashing = 0
        self._waiting = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Raises PasswordsBusy."""
        most = settings.DISPATCHER
        with self._changed:
            if self._hashing >= most.passwords_at_once and self._waiting >= most.passwords_waiting:
                raise PasswordsBusy(
                    f"{most.passwords_at_once} passwords are checked and {most.passwords_waiting} wait, the"
                    " most at once. Try again.",
                    retry_after_seconds=RETRY_SECONDS,
                )
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._hashing < settings.DISPATCHER.passwords_at_once)
                self._hashing += 1
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._hashing -= 1
                self._changed.notify()


# of the process: Django makes a hasher for each use
_slots = HashingSlots()


class BoundedHasher(PBKDF2PasswordHasher):
    """Django's default, with `HashingSlots`. Checking a password hashes it, too; so does an unknown
    account's."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> Any:
        """Raises PasswordsBusy."""
        with _slots.slot():
            return super().encode(password, salt, iterations)
