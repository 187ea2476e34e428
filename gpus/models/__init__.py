from gpus.models.model_config import ConfigVersion, ModelConfig
from gpus.models.pauses_and_audit import AuditEntry, Pause
from gpus.models.processes import FleetIndex, Process
from gpus.models.server import Placement, Pool, QuarantinedSlot, Server

__all__ = [
    "AuditEntry",
    "ConfigVersion",
    "FleetIndex",
    "ModelConfig",
    "Pause",
    "Placement",
    "Pool",
    "Process",
    "QuarantinedSlot",
    "Server",
]
