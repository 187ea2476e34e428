"""The callbacks worker of this process."""

from __future__ import annotations

from functools import lru_cache

from jobs.callbacks.delivery_worker import DeliveryWorker
from jobs.ports import production_ports


@lru_cache(maxsize=1)
def current_delivery_worker() -> DeliveryWorker:
    """Started on first use: by `queue_worker --queues callbacks`."""
    ports = production_ports()
    worker = DeliveryWorker(ports.clock, ports.clocks, registry=ports.registry)
    worker.start()
    return worker
