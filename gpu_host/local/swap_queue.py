"""The queue of runs that wait for a GPU of this machine. Its methods are called with the lock of the GPU
held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_host.local.cache import Load, NoRoom, Replace, Unload, ready
from gpu_host.local.load_unload import ModelLoader
from gpu_host.local.loaded_models import LoadedModels
from gpu_host.local.orders import Order, Run
from gpu_host.local.process_owner import ProcessOwner
from gpu_host.local.running import RunTable
from gpus.errors import DoesNotFit, GpuBusy, ServerFailed


class SwapQueue:
    """waiting: in the order of asking. sick: why nothing begins; empty while it does."""

    def __init__(
        self, owner: ProcessOwner, loaded: LoadedModels, table: RunTable, loader: ModelLoader
    ) -> None:
        self.waiting: list[Order] = []
        self.sick = ""
        self._owner, self._loaded, self._table, self._loader = owner, loaded, table, loader

    def next_step(self, order: Order) -> Run | Callable[[], None] | None:
        """A run: it may begin. A move: do it, then ask again. None: wait. Raises GpuError."""
        if self.sick:
            raise GpuBusy(f"The GPU takes no runs: {self.sick}", retry_after_seconds=5.0)
        for other in self.waiting:
            if other is order:
                break
            if not self._loaded.is_warm(other.model) or other.job in self._table.suspects:
                return None  # it waits for room: who passed it would take that away
        if self._table.is_alone or (self._table.running and order.job in self._table.suspects):
            return None
        if self._owner.is_stuck:
            raise GpuBusy("The model process was killed and is not gone.", retry_after_seconds=5.0)
        if self._owner.is_ending:
            return None
        process = self._owner.process
        if process is None:
            return self._loader.spawn
        if order.model not in self._owner.models:
            raise ServerFailed(f"This process has no model {order.model}.")
        if self._loaded.tainted:
            return None if self._table.running else self._loader.replace
        if self._loaded.is_warm(order.model):
            return self._table.begin(order, process.send) if self._loaded.has_capacity(order.model) else None
        try:
            plan = self._loaded.plan(order.model)
        except OSError as error:
            raise GpuBusy(f"The device can't be read: {error}") from error
        match plan:
            case NoRoom(why, for_ever):
                raise DoesNotFit(why) if for_ever else GpuBusy(why)
            case Load(evict):
                return lambda: self._load(order, evict)
            case Unload(models):
                return lambda: self._loader.unload(models)
            case Replace(why):
                self._loaded.tainted = why
                return self._loader.replace
        return None

    def ready(self) -> list[str]:
        """See `cache.ready`. Without the lock: never waits."""
        at_once = {name: model.at_once for name, model in self._owner.models.items()}
        waiting = [order.model for order in tuple(self.waiting)]
        return ready(list(self._loaded.warm.values()), waiting, at_once)

    def _load(self, order: Order, evict: Sequence[str]) -> None:
        self._table.loading = order
        try:
            self._loader.load(order, evict)
        finally:
            self._table.loading = None
