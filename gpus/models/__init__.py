from .audit import AuditEntry
from .config_version import ConfigVersion
from .fleet_index import FleetIndex
from .model_config import ModelConfig
from .pause import Pause
from .pool import Pool
from .process import Process
from .quarantine import QuarantinedSlot
from .server import Placement, Server

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
