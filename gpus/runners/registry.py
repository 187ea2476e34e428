"""Which runner speaks a model's protocol. A new protocol is a new file and one line here."""

from __future__ import annotations

from gpus.protocol import ModelSpec, ModelType
from gpus.runners.async_http import AsyncHttpRunner
from gpus.runners.base import Runner, Transport
from gpus.runners.sync_http import SyncHttpRunner


def runner_for(model: ModelSpec, transport: Transport | None = None) -> Runner:
    """transport: None for real sockets."""
    if model.model_type is ModelType.ASYNC:
        return AsyncHttpRunner(model, transport)
    return SyncHttpRunner(model, transport)
