"""Finds the runner of a `model_type`: the built-in ones, then those that installed packages bring.

A package declares a runner as an entry point of the group `gpu_dispatcher.runners` whose name is the
`model_type` (`examples/runner_package`). One that can't be used is logged once, and `manage.py doctor`
names it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

import structlog

from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Get, Health, Runner, Transport
from gpus.runners.cog_http import CogRunner
from gpus.runners.http_runner import AsyncHttpRunner, SyncHttpRunner
from gpus.runners.ollama_http import OllamaRunner
from gpus.runners.openai_http import OpenAiRunner


class ServerRunner(Runner, Protocol):
    """A `Runner` for servers that are registered with a URL; one object per attempt."""

    name: str
    """The `model_type` of its models: up to 64 letters, digits, ``.``, ``_`` and ``-``."""
    summary: str
    """Which servers speak it, in one sentence: for forms, the API's schema and
    docs/reference/model_options.md."""
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


log = structlog.get_logger(__name__)

GROUP = "gpu_dispatcher.runners"
MAX_NAME = 64
BUILT_IN: tuple[type[ServerRunner], ...] = (
    SyncHttpRunner,
    AsyncHttpRunner,
    OpenAiRunner,
    OllamaRunner,
    CogRunner,
)
_METHODS = ("start", "poll", "cancel", "read_pushed", "check_options", "health_url", "health")
_FLAGS = ("is_polled", "is_pushed", "is_pinned", "calls_on_sent", "answer_ends_run")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RunnerMissing(LookupError):
    """No installed runner has this name."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An entry point that brings no runner. entry: as its package declares it; why: one line."""

    entry: str
    why: str


class RunnerRegistry:
    """Runners by name, the built-in ones first. Entry points are loaded once, when a name is none of those or
    all are asked for. Safe for threads."""

    def __init__(
        self,
        built_in: Iterable[type[ServerRunner]] = BUILT_IN,
        declared: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=GROUP),
    ) -> None:
        self._built_in = {runner.name: runner for runner in built_in}
        self._declared = declared
        self._lock = threading.RLock()
        self._loaded: tuple[Mapping[str, type[ServerRunner]], tuple[Unusable, ...]] | None = None

    def find(self, name: str) -> type[ServerRunner] | None:
        return self._built_in.get(name) or self._load()[0].get(name)

    def all(self) -> Mapping[str, type[ServerRunner]]:
        """By name, in the order in which they are shown."""
        return {**self._built_in, **self._load()[0]}

    def unusable(self) -> Sequence[Unusable]:
        return self._load()[1]

    def reload(self) -> None:
        """Looks for entry points anew when they are asked for next."""
        with self._lock:
            self._loaded = None

    def _load(self) -> tuple[Mapping[str, type[ServerRunner]], tuple[Unusable, ...]]:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._read()
            return self._loaded

    def _read(self) -> tuple[Mapping[str, type[ServerRunner]], tuple[Unusable, ...]]:
        found: dict[str, type[ServerRunner]] = {}
        origins = {name: "the dispatcher itself" for name in self._built_in}
        unusable = []
        for entry in sorted(self._declared(), key=lambda one: (one.name, one.value)):
            try:
                if entry.name in origins:
                    raise ValueError(f"the name is taken: {origins[entry.name]} has a runner of that name")
                found[entry.name] = check_runner(entry.name, entry.load())
                origins[entry.name] = describe_entry_point(entry)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # importing a package may do anything, such as panic in Rust
                why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
                unusable.append(Unusable(describe_entry_point(entry), why))
                log.error("runner_not_loaded", entry_point=describe_entry_point(entry), error=why)
        return found, tuple(unusable)


def check_runner(name: str, runner: Any) -> type[ServerRunner]:
    """Raises ValueError with what the class lacks."""
    if not isinstance(runner, type):
        raise ValueError("it is no class")
    lacking = [one for one in _METHODS if not callable(getattr(runner, one, None))]
    lacking += [one for one in _FLAGS if not isinstance(getattr(runner, one, None), bool)]
    lacking += [one for one in ("name", "summary") if not isinstance(getattr(runner, one, None), str)]
    options = getattr(runner, "options", None)
    if isinstance(options, str) or not isinstance(options, Sequence):
        lacking.append("options")
    if lacking:
        raise ValueError(f"the class has no usable {', '.join(lacking)} (gpus/runners/registry.py)")
    found: type[ServerRunner] = runner
    if found.name != name:
        raise ValueError(f"the entry point is named {name!r}, the class {found.name!r}")
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError(f"a name has up to {MAX_NAME} letters, digits, '.', '_' and '-'")
    if found.is_pinned:
        raise ValueError("a pinned runner belongs to its worker, not to a model_type")
    return found


def describe_entry_point(entry: EntryPoint) -> str:
    """``acme = acme_runner:AcmeRunner (acme-runner 1.0)``"""
    package = f" ({entry.dist.name} {entry.dist.version})" if entry.dist is not None else ""
    return f"{entry.name} = {entry.value}{package}"


RUNNERS = RunnerRegistry()
"""Of this process."""


def find_runner(model_type: str) -> type[ServerRunner] | None:
    """None: no installed runner has the name."""
    return RUNNERS.find(model_type)


def runner_names() -> list[str]:
    return list(RUNNERS.all())


def runner_for(model: ModelSpec, transport: Transport | None = None) -> Runner:
    """transport: None for real sockets. Raises RunnerMissing."""
    found = find_runner(model.model_type)
    if found is None:
        raise RunnerMissing(missing_runner_message(model.model_type))
    return found(model, transport)


def is_polled(model: ModelSpec) -> bool:
    """Whether the model's runs outlive the request that began them."""
    found = find_runner(model.model_type)
    return found is not None and found.is_polled


def missing_runner_message(model_type: str) -> str:
    """The sentence for people."""
    return f"No runner {model_type!r} is installed; there are: {', '.join(runner_names())}."
