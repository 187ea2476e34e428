"""Finds the runner of a `model_type`: a built-in one, or one of an installed package.

A package declares a runner as an entry point of the group `gpu_dispatcher.runners`, named after its
`model_type` (`examples/runner_package`). An unusable entry point is logged once, and listed by `manage.py
doctor`.
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
from gpus.runners.base import CONFIRMED_CANCEL, Get, Health, Runner, Transport
from gpus.runners.cog_http import CogRunner
from gpus.runners.http_runner import AsyncHttpRunner, SyncHttpRunner
from gpus.runners.ollama_http import OllamaRunner
from gpus.runners.openai_http import OpenAiRunner


class ServerRunner(Runner, Protocol):
    """A `Runner` for servers that are registered with a URL; one instance per attempt."""

    name: str
    """The `model_type`: up to 64 letters, digits, ``.``, ``_`` and ``-``."""
    summary: str
    """One sentence on its servers, for forms, the API's schema and docs/reference/model_options.md."""
    options: Sequence[str]
    """Runner-specific model options that this runner reads."""
    takes_uploads: bool
    """Whether its servers upload the files of their outputs: a server's upload URL is then shown
    (`gpus.registry.upload_url`)."""

    def __init__(self, model: ModelSpec, transport: Transport | None = None) -> None: ...

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        """Raise OptionRefused for model options that the protocol does not support; called before they are
        stored."""
        ...

    @classmethod
    def health_url(cls, model: ModelSpec, endpoint: Endpoint) -> str:
        """The first URL of the health probe; its origin identifies the server."""
        ...

    @classmethod
    def health(cls, model: ModelSpec, endpoint: Endpoint, get: Get) -> Health:
        """Probe the server's health. get: sends a GET; its GpuErrors are not caught."""
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
_DEFAULTS: Mapping[str, bool | str] = {"stopped_by": CONFIRMED_CANCEL, "takes_uploads": False}
"""Attributes that a package's class may lack, because it was made for an earlier version."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RunnerMissing(LookupError):
    """No installed runner has this name."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """An entry point without a usable runner. entry: its declaration; why: one line."""

    entry: str
    why: str


class RunnerRegistry:
    """Runners by name, built-in ones first. Thread-safe.

    Entry points are loaded once, for the first name that is not built in or the first call of `all`.
    """

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
        """The runner of this name, or None."""
        return self._built_in.get(name) or self._load()[0].get(name)

    def all(self) -> Mapping[str, type[ServerRunner]]:
        """All runners by name, in display order."""
        return {**self._built_in, **self._load()[0]}

    def unusable(self) -> Sequence[Unusable]:
        """The unusable entry points."""
        return self._load()[1]

    def reload(self) -> None:
        """Load the entry points again at the next use."""
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
            except BaseException as error:  # importing a package may raise anything, such as a Rust panic
                why = " ".join(f"{type(error).__name__}: {error}".split())[:500]
                unusable.append(Unusable(describe_entry_point(entry), why))
                log.error("runner_not_loaded", entry_point=describe_entry_point(entry), error=why)
        return found, tuple(unusable)


def check_runner(name: str, runner: Any) -> type[ServerRunner]:
    """Return the class if it is a usable runner of this name. Raises ValueError with the reason."""
    if not isinstance(runner, type):
        raise ValueError("it is not a class")
    lacking = [one for one in _METHODS if not callable(getattr(runner, one, None))]
    lacking += [one for one in _FLAGS if not isinstance(getattr(runner, one, None), bool)]
    lacking += [one for one in ("name", "summary") if not isinstance(getattr(runner, one, None), str)]
    for one, default in _DEFAULTS.items():
        if not hasattr(runner, one):
            setattr(runner, one, default)
        if not isinstance(getattr(runner, one), type(default)):
            lacking.append(one)
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
    """The entry point as text: ``acme = acme_runner:AcmeRunner (acme-runner 1.0)``."""
    package = f" ({entry.dist.name} {entry.dist.version})" if entry.dist is not None else ""
    return f"{entry.name} = {entry.value}{package}"


RUNNERS = RunnerRegistry()
"""The registry of this process."""


def find_runner(model_type: str) -> type[ServerRunner] | None:
    """The runner class of a model_type, or None if it is not installed."""
    return RUNNERS.find(model_type)


def runner_names() -> list[str]:
    """Names of all installed runners, in display order."""
    return list(RUNNERS.all())


def runner_for(model: ModelSpec, transport: Transport | None = None) -> Runner:
    """A new runner for a model. transport: None: real sockets. Raises RunnerMissing."""
    found = find_runner(model.model_type)
    if found is None:
        raise RunnerMissing(missing_runner_message(model.model_type))
    return found(model, transport)


def is_polled(model: ModelSpec) -> bool:
    """Whether the model's runs continue after the request that started them."""
    found = find_runner(model.model_type)
    return found is not None and found.is_polled


def takes_uploads(model_type: str) -> bool:
    """Whether the servers of a model_type upload the files of their outputs."""
    found = find_runner(model_type)
    return found is not None and found.takes_uploads


def missing_runner_message(model_type: str) -> str:
    """The error message for a model_type without a runner."""
    return f"No runner {model_type!r} is installed; there are: {', '.join(runner_names())}."
