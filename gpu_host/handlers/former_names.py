"""Model code and node configurations written for 0.1 name `gpus.handlers` and `gpus.node`: they get the same
modules from where these are now."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FORMER = {"gpus.handlers": "gpu_host.handlers", "gpus.node": "gpu_host.node"}


class _SameModule(Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # it was executed under its own name


class _FormerNames(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for former, now in FORMER.items():
            if fullname == former or fullname.startswith(f"{former}."):
                return ModuleSpec(fullname, _SameModule(now + fullname.removeprefix(former)))
        return None


def keep() -> None:
    """Before code of others is imported. Twice is once."""
    if not any(isinstance(finder, _FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FormerNames())
