"""How long a server that refused gets nothing from this process."""

from __future__ import annotations

from gpus.errors import ConnectFailed, CredentialsRefused, GpuBusy, GpuError, StaleFence

FIRST_SECONDS, CAP_SECONDS = 1.0, 30.0


class ServerRests:
    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def after(self, server: str, error: GpuError | None) -> float | None:
        """Of one that said it is busy, refused the lease or our credentials, or can't be reached: what it
        asked for, if that is a second or more; else 1 s doubling to 30 s, forgotten at its first answer.
        None: no refusal."""
        if not isinstance(error, (GpuBusy, ConnectFailed, CredentialsRefused, StaleFence)):
            self.answered(server)
            return None
        rest = self.broke(server)
        asked = error.retry_after_seconds
        return rest if asked is None or asked < FIRST_SECONDS else min(asked, 3600.0)

    def broke(self, server: str) -> float:
        """Something of this server can't be used here (a secret that can't be read)."""
        rest = self._next.get(server, FIRST_SECONDS)
        self._next[server] = min(rest * 2.0, CAP_SECONDS)
        return rest

    def answered(self, server: str) -> None:
        self._next.pop(server, None)
