"""The callbacks worker of this process."""

from __future__ import annotations

from functools import lru_cache

from jobs.callbacks.delivery_worker import DeliveryWorker
from jobs.services.ports import production_ports


@lru_cache(maxsize=1)
def current_delivery_worker() -> DeliveryWorker:
    """Started on first use: by `queue_worker --queues callbacks`."""
    worker = DeliveryWorker(production_ports().clock)
    worker.start()
    return worker
