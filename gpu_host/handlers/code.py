"""A model's code: imported by its dotted path, its declared attributes, and calls of it.

The import may take seconds and gigabytes."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import ModuleType
from typing import Any

from gpu_host.handlers.context import RunContext
from gpu_host.handlers.errors import ContractError

_POSITIVE = ("vram_mb", "max_run_seconds", "max_load_seconds", "quiet_seconds")
MAX_AT_ONCE = 64
HELD_OUTSIDE = ("", "ours", "theirs")


@dataclass(frozen=True, slots=True)
class Declared:
    """The attributes of one model.

    vram_mb: memory with a run in it, MiB; None: measured at the first load. max_run_seconds,
    max_load_seconds: after these the process is replaced. quiet_seconds: without progress for this long, on
    an idle GPU, a run counts as hung; None: never. warm_seconds: how long it stays loaded after its last run.
    at_once: its concurrent runs. min_resident: stays loaded while idle, and is unloaded last for another
    model. held_outside: where its memory is if not in the process that loads it: "ours", in processes that
    count as ours and outlive that process; "theirs", counted as that of others. Its `unload` is then also
    called in a process that did not load it.
    """

    name: str
    vram_mb: float | None = None
    max_run_seconds: float | None = None
    max_load_seconds: float = 600.0
    quiet_seconds: float | None = None
    warm_seconds: float = 300.0
    at_once: int = 1
    min_resident: bool = False
    held_outside: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def declared_by(name: str, source: Any) -> Declared:
    """Read the attributes of a module, a class or a function. Raises ContractError."""
    found = {
        field.name: getattr(source, field.name)
        for field in fields(Declared)
        if field.name != "name" and hasattr(source, field.name)
    }
    for field in _POSITIVE:
        value = found.get(field)
        if value is not None and not _is_number(value, above=0.0):
            raise ContractError(f"{name}: {field} is a number above 0, not {value!r}")
    if "warm_seconds" in found and not _is_number(found["warm_seconds"], above=-1e-9):
        raise ContractError(f"{name}: warm_seconds is a number from 0, not {found['warm_seconds']!r}")
    at_once = found.get("at_once", 1)
    if isinstance(at_once, bool) or not isinstance(at_once, int) or not 1 <= at_once <= MAX_AT_ONCE:
        raise ContractError(f"{name}: at_once is 1 to {MAX_AT_ONCE}, not {at_once!r}")
    if found.get("held_outside", "") not in HELD_OUTSIDE:
        raise ContractError(f"{name}: held_outside is one of {HELD_OUTSIDE}, not {found['held_outside']!r}")
    return Declared(name, **found)


def _is_number(value: Any, *, above: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value > above


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ModelCode:
    """A model: a module, a class, or a function. Call `load` before `run`; `load` and `unload` from one
    thread at a time, `run` from several.

    source: the object that has `run`. A class is instantiated by each load; the instance is the handle unless
    its `load` returns something."""

    def __init__(self, name: str, source: Any) -> None:
        self.declared: Declared = declared_by(name, source)
        self.handle: Any = None
        self.source = source
        self._object: Any = None
        self._run: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def is_loaded(self) -> bool:
        return self._run is not None

    def load(self) -> None:
        """Load the model. Raises what its code raises."""
        self._object = self.source() if inspect.isclass(self.source) else self.source
        load = None if _is_function(self.source) else getattr(self._object, "load", None)
        made = load() if load is not None else None
        self.handle = self._object if made is None and inspect.isclass(self.source) else made
        self._run = self._object if _is_function(self.source) else self._object.run

    def run(self, payload: Any, ctx: RunContext) -> Any:
        """Run the payload and return the result. Raises what its code raises."""
        if self._run is None:
            raise RuntimeError(f"model {self.name} is not loaded")
        ctx.model = self.handle
        return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)

    def unload(self) -> None:
        """Drop the handle, even if the model's `unload` raises; that is also called for a model held outside
        that was not loaded here. Raises what its code raises."""
        loaded = self.source if self.declared.held_outside else self._object
        unload = None if _is_function(self.source) else getattr(loaded, "unload", None)
        try:
            if unload is not None:
                unload()
        finally:
            self.handle = self._object = self._run = None


def find_models(paths: Sequence[str]) -> dict[str, ModelCode]:
    """Return the models at these paths, by name. Raises ContractError.

    A path is ``[NAME=]package.module[:ATTRIBUTE]``. Without an attribute, a module with `run` is a model, and
    a module with ``MODELS`` (name → class, function, module or path) is all of these."""
    found: dict[str, ModelCode] = {}
    for path in paths:
        name, given, dotted = path.rpartition("=")
        for model in _models_at(dotted, name if given else ""):
            if model.name in found:
                raise ContractError(f"two models are named {model.name}")
            found[model.name] = model
    if not found:
        raise ContractError("there is no model")
    return found


def _models_at(path: str, name: str) -> list[ModelCode]:
    source = import_source(path)
    if not names_several(source):
        return [_model(name or _default_name(path, source), source, path)]
    several = source.MODELS
    if name:
        raise ContractError(f"{path} names its models itself (MODELS): leave out {name}=")
    if not isinstance(several, Mapping) or not several:
        raise ContractError(f"{path}.MODELS is a mapping of names to models")
    return [
        _model(key, import_source(value) if isinstance(value, str) else value, f"{path}.MODELS[{key!r}]")
        for key, value in several.items()
    ]


def names_several(source: Any) -> bool:
    """Return True for a module with ``MODELS``."""
    return isinstance(source, ModuleType) and getattr(source, "MODELS", None) is not None


def import_source(path: str) -> Any:
    """Import ``package.module[:ATTRIBUTE]``. Raises ContractError with the reason."""
    module_name, _, attribute = path.partition(":")
    if not module_name:
        raise ContractError(f"a model is package.module or package.module:attribute, not {path!r}")
    try:
        module = importlib.import_module(module_name)
        return getattr(module, attribute) if attribute else module
    except Exception as error:  # an author's module may raise anything
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            hint = ". Set PYTHONPATH to the folder that contains it"
        raise ContractError(
            f"model {path!r} can't be loaded: {type(error).__name__}: {error}{hint}"
        ) from error


def _model(name: Any, source: Any, path: str) -> ModelCode:
    if not is_name(name):
        raise ContractError(f"{path}: {name!r} is not a model's name (letters, digits, . _ -, at most 64)")
    if not _is_function(source) and not callable(getattr(source, "run", None)):
        raise ContractError(f"{path} has no function run(payload, ctx)")
    return ModelCode(name, source)


def is_name(name: Any) -> bool:
    """Return True if this is a valid name of a model."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _default_name(path: str, source: Any) -> str:
    name = getattr(source, "name", None)
    if isinstance(name, str) and name:
        return name
    module, _, attribute = path.partition(":")
    return module.rpartition(".")[2] if attribute in ("", "run") else attribute.lower()


def _is_function(source: Any) -> bool:
    return callable(source) and not inspect.isclass(source) and not hasattr(source, "run")


def _takes_context(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True
