"""Announcements that arrive: a test that waits for one has no other signal."""

from __future__ import annotations

import pytest

from jobs.events import announce as announcing


def announce_patiently(patch: pytest.MonkeyPatch) -> None:
    """They give up on a Redis that does not answer within a fifth of a second: on a busy machine that happens
    to a sound one."""
    patch.setattr(announcing, "TIMEOUT_SECONDS", 60.0)
