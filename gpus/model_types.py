"""The protocols that servers may speak. Pure."""

from __future__ import annotations

from enum import StrEnum


class ModelType(StrEnum):
    """Which protocol its servers speak."""

    SYNC = "sync"
    ASYNC = "async"
    OPENAI = "openai"
    OLLAMA = "ollama"
    COG = "cog"

    @property
    def is_polled(self) -> bool:
        """Its runs outlive the request that began them."""
        return self in (ModelType.ASYNC, ModelType.COG)
