"""Brute-force protection of the sign-in page: limits on failed sign-ins per account and address and per
address, on concurrent sign-ins per address, and on concurrent password hashes per process.

The limit of an account counts per address, so that an attacker elsewhere can't lock its owner out. A sign-in
is counted as failed before its password is checked, so that concurrent sign-ins can't exceed the limit.
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

CONCURRENT_PER_ADDRESS = 2
LONGEST_ACCOUNT = 150
"""Maximum length of a Django username; normalizing combining marks takes time quadratic in the length."""
CLOCK_TOLERANCE = timedelta(minutes=1)
"""A failure further in the future was written by a wrong clock and is ignored."""
MAX_ACCOUNTS_NAMED = 10_000
"""Accounts whose digests are compared for a page of failures; each comparison takes about 10 µs."""


class SignInRefused(Refused):
    """Too many sign-ins failed. limit: the exceeded one, `account` or `address`."""

    code = "sign_in_refused"
    status = 429

    def __init__(self, limit: str, why: str, left: timedelta) -> None:
        minutes = max(1, round(left.total_seconds() / 60))
        super().__init__(
            f"{why}, which is the limit. Try again in {minutes} min.",
            retry_after_seconds=left.total_seconds(),
        )
        self.limit = limit


class TooManySignIns(Refused):
    """Too many concurrent sign-ins from one address."""

    code = "sign_in_busy"
    status = 429


class SignInsInFlight:
    """Counts concurrent sign-ins by address. One object per process, owned by the sign-in page."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: Counter[str] = Counter()

    @contextmanager
    def enter(self, address: str) -> Iterator[None]:
        """Count one sign-in while the context is open. Raises TooManySignIns."""
        with self._lock:
            if self._in_flight[address] >= CONCURRENT_PER_ADDRESS:
                raise TooManySignIns(
                    f"{CONCURRENT_PER_ADDRESS} sign-ins from this address are in progress, which is the"
                    " limit. Try again in a second.",
                    retry_after_seconds=1.0,
                )
            self._in_flight[address] += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_flight[address] -= 1
                self._in_flight += Counter()  # removes addresses with a count of 0


def account_digest(account: str) -> str:
    """Return the digest of an account name, equal for all spellings that the sign-in form treats as equal."""
    folded = unicodedata.normalize("NFKC", account.strip()[:LONGEST_ACCOUNT]).strip().casefold()
    return salted_hmac("jobs.sign_in", folded, algorithm="sha256").hexdigest()


def account_names(digests: Collection[str]) -> dict[str, str]:
    """Return the names of existing accounts, by digest, for these digests."""
    names = get_user_model().objects.order_by("pk").values_list("username", flat=True)[:MAX_ACCOUNTS_NAMED]
    named = ((account_digest(name), name) for name in names)
    return {digest: name for digest, name in named if digest in digests}


def count_try(address: str, account: str, now: datetime) -> None:
    """Count a sign-in as failed, before its password is checked.

    address: network as returned by `network_of`. Raises SignInRefused if a limit is reached; that sign-in is
    not counted.
    """
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
    """Undo one `count_try`, because its password was not checked."""
    row = SignInFailure.objects.filter(address=address, account=account_digest(account)).first()
    if row is not None and row.count > 1:
        SignInFailure.objects.filter(pk=row.pk, count=row.count).update(count=row.count - 1)
    elif row is not None:
        row.delete()


def forget_failures(address: str, account: str) -> None:
    """Delete the failures of this account and address, after a successful sign-in."""
    SignInFailure.objects.filter(address=address, account=account_digest(account)).delete()


def unlock(address: str | None = None, *, by: str) -> int:
    """Delete the failures of an address, or all; return the number of rows.

    address: IP address; None: all. by: actor for the audit entry.
    """
    rows, name = SignInFailure.objects.all(), "*"
    if address is not None:
        name = network_of(address)
        rows = rows.filter(address=name)
    with transaction.atomic():
        count = rows.delete()[0]
        record(by, "unlock_sign_in", f"address:{name}", rows=count)
    return count


def drop_old_failures(now: datetime) -> int:
    """Delete failures that are older than the lock time, or in the future; return the number of rows."""
    lock = timedelta(seconds=settings.DISPATCHER.sign_in_lock_seconds)
    is_old = Q(last_at__lte=now - lock) | Q(last_at__gt=now + lock)
    return SignInFailure.objects.filter(is_old).delete()[0]


def note_refusal(refused: Refused) -> None:
    """Count a refused sign-in for /metrics, by limit."""
    limit = refused.limit if isinstance(refused, SignInRefused) else "at_once"
    counters.add_by_code_if_possible(counters.Name.SIGN_INS_REFUSED, {limit: 1})


# -- hashing -----------------------------------------------------------------------------------------

RETRY_SECONDS = 2.0


class PasswordsBusy(Refused):
    """Too many passwords are being checked in this process."""

    code = "sign_in_busy"
    status = 503


class HashingSlots:
    """Limits concurrent password hashes in a process: `passwords_at_once` threads hash, `passwords_waiting`
    wait.

    A hash uses one core for about half a second, and a waiting sign-in blocks a web thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hashing = 0
        self._waiting = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one slot while the context is open, after waiting for it. Raises PasswordsBusy."""
        most = settings.DISPATCHER
        with self._changed:
            if self._hashing >= most.passwords_at_once and self._waiting >= most.passwords_waiting:
                raise PasswordsBusy(
                    f"{most.passwords_at_once} passwords are being checked and {most.passwords_waiting} wait,"
                    f" which is the limit. Try again in {RETRY_SECONDS:.0f} s.",
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


# per process, because Django creates a hasher for each use
_slots = HashingSlots()


class BoundedHasher(PBKDF2PasswordHasher):
    """Django's default hasher, limited by `HashingSlots`. It also runs when a password is checked, even for
    an unknown account."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> Any:
        """Hash a password. Raises PasswordsBusy."""
        with _slots.slot():
            return super().encode(password, salt, iterations)
