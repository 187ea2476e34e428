"""Which runner speaks a model's protocol. A new protocol is a new file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from gpus.protocol import ModelSpec, ModelType
from gpus.runners.async_http import AsyncHttpRunner
from gpus.runners.base import Runner, Transport
from gpus.runners.cog_http import CogRunner
from gpus.runners.ollama_http import OllamaRunner
from gpus.runners.openai_http import OpenAiRunner
from gpus.runners.sync_http import SyncHttpRunner

_RUNNERS: dict[ModelType, Callable[[ModelSpec, Transport | None], Runner]] = {
    ModelType.SYNC: SyncHttpRunner,
    ModelType.ASYNC: AsyncHttpRunner,
    ModelType.OPENAI: OpenAiRunner,
    ModelType.OLLAMA: OllamaRunner,
    ModelType.COG: CogRunner,
}


def runner_for(model: ModelSpec, transport: Transport | None = None) -> Runner:
    """transport: None for real sockets."""
    return _RUNNERS[model.model_type](model, transport)
