"""What a protocol of GPU servers is: one class in one file, found by its name (`gpus.runners.registry`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Runner, Transport
from gpus.runners.health_probe import Get, Health


class ServerRunner(Runner, Protocol):
    """A `Runner` for servers that are registered with a URL; one object per attempt."""

    name: str
    """The `model_type` of its models: up to 64 letters, digits, ``.``, ``_`` and ``-``."""
    summary: str
    """Which servers speak it, in one sentence: for forms, the API's schema and docs/model_options.md."""
    options: Sequence[str]
    """The model's options that only some runners read, and this one does."""

    def __init__(self, model: ModelSpec, transport: Transport | None = None) -> None: ...

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        """Raises OptionRefused for what the protocol can't work with, before it is stored."""
        ...

    @classmethod
    def health_url(cls, model: ModelSpec, endpoint: Endpoint) -> str:
        """Where the server is asked for its health first; its origin stands for the server."""
        ...

    @classmethod
    def health(cls, model: ModelSpec, endpoint: Endpoint, get: Get) -> Health:
        """Asks the server how it is. Lets the GpuErrors of `get` through."""
        ...
