from gpus.models.audit import AuditEntry
from gpus.models.config_version import ConfigVersion
from gpus.models.fleet_index import FleetIndex
from gpus.models.model_config import ModelConfig
from gpus.models.pause import Pause
from gpus.models.pool import Pool
from gpus.models.process import Process
from gpus.models.quarantine import QuarantinedSlot
from gpus.models.server import Placement, Server

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
