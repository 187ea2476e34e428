from .model_config import ModelConfig
from .pool import Pool
from .quarantine import QuarantinedSlot
from .server import Placement, Server

__all__ = ["ModelConfig", "Placement", "Pool", "QuarantinedSlot", "Server"]
