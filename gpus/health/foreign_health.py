"""What servers of other protocols say of themselves, as far as it fits into ours.

None of them lists its runs. Where one counts them, the count may free a slot after an uncertain end; where
none does, the model's run limit does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from urllib.parse import urljoin, urlsplit, urlunsplit

from gpus.errors import GpuError
from gpus.health.evidence import Health
from gpus.protocol import ModelType
from gpus.runners.base import Response
from gpus.runners.cog_http import health_url as cog_health_url
from gpus.runners.json_body import Unreadable, read_json
from gpus.runners.refusals import refusal

Get = Callable[[str], Response]
"""Raises GpuError."""

NO_SUCH_PAGE = frozenset({404, 405, 501})
"""What a server answers that has no page there: it is reachable, and nothing speaks against it."""

_RUNNING = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "tgi_batch_current_size",
    "tgi_queue_size",
)
_GAUGE = re.compile(rf"^({'|'.join(_RUNNING)})(?:\{{[^}}\n]*\}})?\s+([0-9.eE+]+)", re.MULTILINE)
_COG_SERVES = frozenset({"READY", "BUSY"})


def first_url(kind: ModelType, endpoint: str, health_path: str = "") -> str:
    """Where a server of this kind is asked first; it names the origin. health_path: of the model, where it
    names one (`/healthz?deep=1`)."""
    if kind is ModelType.COG:
        return cog_health_url(endpoint)
    if health_path and kind in (ModelType.SYNC, ModelType.ASYNC):
        return urljoin(endpoint, health_path)
    return _at_root(endpoint, "/api/tags" if kind is ModelType.OLLAMA else "/health")


def ask_openai(endpoint: str, model: str, slots: int, get: Get) -> Health:
    """``/health``, and where there is none the list of models; how many run is among the metrics."""
    answer = get(_at_root(endpoint, "/health"))
    if answer.status in NO_SUCH_PAGE:
        base = re.sub(r"/(chat/completions|completions|embeddings)/?$", "", endpoint).rstrip("/")
        has_path = urlsplit(base).path
        answer = get(f"{base}/models" if has_path else f"{base}/v1/models")
    if answer.status in NO_SUCH_PAGE:
        return Health(True, tells=False)
    if answer.status != 200:
        return Health(False, error=f"it answered {refusal(answer.status)}: {_words(answer)}")
    try:
        metrics = get(_at_root(endpoint, "/metrics"))
    except GpuError:  # its health does not hang on them
        return Health(True)
    return Health(True, active_jobs=_counted(metrics))


def ask_ollama(endpoint: str, model: str, slots: int, get: Get) -> Health:
    """It never says what it runs. One that lacks this model may have the others that it is registered with:
    the model's jobs are told."""
    answer = get(_at_root(endpoint, "/api/tags"))
    if has_model(answer, model) is None:
        return Health(False, error=f"/api/tags answered {refusal(answer.status)}: {_words(answer)}")
    return Health(True)


def has_model(answer: Response, model: str) -> bool | None:
    """Whether one of Ollama's lists of models has it. None: it is no such list."""
    try:
        said = read_json(answer.body) if answer.status == 200 else None
    except Unreadable:
        said = None
    models = said.get("models") if isinstance(said, dict) else None
    if not isinstance(models, list):
        return None
    names = {str(one.get("name")) for one in models if isinstance(one, dict)}
    return bool(names & {model, f"{model}:latest"})


def ask_cog(endpoint: str, model: str, slots: int, get: Get) -> Health:
    """A busy one has no slot left. One that is ready may run something all the same: it does not say how many
    slots it has, and who registered it may not know."""
    answer = get(cog_health_url(endpoint))
    try:
        said = read_json(answer.body) if answer.status == 200 else None
    except Unreadable:
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("status"), str):
        return Health(False, error=f"/health-check answered {refusal(answer.status)}: {_words(answer)}")
    state = said["status"].upper()
    if state not in _COG_SERVES:
        return Health(False, error=f"Cog is {state}: {said.get('user_healthcheck_error') or 'no more said'}")
    running = slots if state == "BUSY" else None
    return Health(True, boot_id=_setup_of(said), active_jobs=running, max_concurrent=slots)


OTHERS: dict[ModelType, Callable[[str, str, int, Get], Health]] = {
    ModelType.OPENAI: ask_openai,
    ModelType.OLLAMA: ask_ollama,
    ModelType.COG: ask_cog,
}
"""(endpoint, the model's name there, slots, get): by kind."""


def _setup_of(said: dict[str, object]) -> str:
    """When it was set up, which is once in its life."""
    setup = said.get("setup")
    began = setup.get("started_at") if isinstance(setup, dict) else None
    try:
        return datetime.fromisoformat(str(began)).isoformat()
    except ValueError:
        return ""


def _counted(metrics: Response) -> int | None:
    if metrics.status != 200:
        return None
    found = _GAUGE.findall(metrics.body.decode("utf-8", "replace"))
    try:
        return round(sum(float(number) for _, number in found)) if found else None
    except (ValueError, OverflowError):
        return None


def _at_root(endpoint: str, path: str) -> str:
    parts = urlsplit(endpoint)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _words(answer: Response) -> str:
    return answer.body[:200].decode("utf-8", "replace").replace("\0", "").strip() or "no reason given"
