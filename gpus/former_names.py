"""Import hook: `gpus.handlers` and `gpus.node` of version 0.1 are `gpu_host.handlers` and `gpu_host.node`.

Model code imports the former; node configurations and `python -m gpus.node` use the latter
(CHANGELOG, docs/adr/0042-packages-by-subject.md). A hook, because error classes must be the same objects
under both names, and `gpus` may not import `gpu_host`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

FORMER = ("gpus.handlers", "gpus.node")


class _SameModule(InspectLoader):
    """Loads the module of the present name under the former one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # it was executed under its present name

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        spec = importlib.util.find_spec(self._name)
        assert spec is not None
        assert isinstance(spec.loader, InspectLoader)
        return spec.loader.get_code(self._name)

    def get_source(self, fullname: str) -> None:
        return None


class _FormerNames(MetaPathFinder):
    """Finds modules under their former names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in FORMER and fullname.rpartition(".")[0] not in FORMER:
            return None
        same = _SameModule(fullname.replace("gpus", "gpu_host", 1))
        return ModuleSpec(fullname, same, is_package=fullname in FORMER)


def install() -> None:
    """Install the hook; it comes first, because the path finder would load a submodule a second time."""
    sys.meta_path.insert(0, _FormerNames())
