"""Exponential backoff of GPU servers that refused a run: how long this process sends them nothing."""

from __future__ import annotations

from gpus.errors import ConnectFailed, CredentialsRefused, GpuBusy, GpuError, StaleFence

FIRST_SECONDS, CAP_SECONDS = 1.0, 30.0


class ServerBackoff:
    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def after_answer(self, server: str, error: GpuError | None) -> float | None:
        """Return the rest in seconds after a refusal (busy, stale fence, bad credentials, unreachable): the
        server's Retry-After if that is a second or more, else 1 s doubling to 30 s. Any other answer resets
        the backoff and returns None."""
        if not isinstance(error, (GpuBusy, ConnectFailed, CredentialsRefused, StaleFence)):
            self.reset(server)
            return None
        rest = self.after_failure(server)
        asked = error.retry_after_seconds
        return rest if asked is None or asked < FIRST_SECONDS else min(asked, 3600.0)

    def after_failure(self, server: str) -> float:
        """Return the next rest of a server that can't be used here (an unreadable secret)."""
        rest = self._next.get(server, FIRST_SECONDS)
        self._next[server] = min(rest * 2.0, CAP_SECONDS)
        return rest

    def reset(self, server: str) -> None:
        self._next.pop(server, None)
