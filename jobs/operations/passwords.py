"""Passwords hashed by few threads at once: a hash takes a core for about half a second, and a sign-in that
waits holds a thread of the web."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher

from jobs.domain.errors import Refused

RETRY_SECONDS = 2.0


class PasswordsBusy(Refused):
    """Too many passwords are being checked."""

    code = "sign_in_busy"
    status = 503


class HashingSlots:
    """Limits the password hashes of a process: `passwords_at_once` threads hash, `passwords_waiting` wait."""

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
