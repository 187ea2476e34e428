"""The trial's Valkey, which can be killed and restarted on its port and folder."""

from __future__ import annotations

from dispatcher_project.supervisor.embedded import EmbeddedValkey


class OwnValkey(EmbeddedValkey):
    """The trial's own Valkey process."""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None
