"""The contract between the dispatcher and a model's own code (docs/reference/model_code.md).

Standard library only: GPU processes import this, on a node and on a pinned worker alike."""

from gpu_host.handlers.context import RunContext
from gpu_host.handlers.errors import BadInput, Cancelled, OutOfMemory, TransientGpuError

__all__ = ["BadInput", "Cancelled", "OutOfMemory", "RunContext", "TransientGpuError"]
