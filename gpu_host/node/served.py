"""What of a node its routes use."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from gpu_host.node.admission import Admission
from gpu_host.node.config import NodeConfig
from gpu_host.node.faults import FaultPlan
from gpu_host.node.handlers import Handler
from gpu_host.node.runs import RunLog


class ServedNode(Protocol):
    """`gpu_host.node.server.Node`."""

    config: NodeConfig
    simulates: bool
    faults: FaultPlan
    log: RunLog
    admission: Admission
    stopping: threading.Event

    @property
    def models(self) -> list[str]: ...

    def handler_for(self, first_segment: str) -> Handler | None: ...

    def health(self) -> dict[str, Any]: ...

    def restart(self, *, down_seconds: float = 0.0) -> None: ...
