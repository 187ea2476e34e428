from .audit import AuditEntry
from .config_version import ConfigVersion
from .model_config import ModelConfig
from .pause import Pause
from .pool import Pool
from .quarantine import QuarantinedSlot
from .server import Placement, Server

__all__ = [
    "AuditEntry",
    "ConfigVersion",
    "ModelConfig",
    "Pause",
    "Placement",
    "Pool",
    "QuarantinedSlot",
    "Server",
]
