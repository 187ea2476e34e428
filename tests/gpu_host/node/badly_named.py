"""A model whose name would hide one of the node's own routes."""

from tests.gpu_host.node.custom_handlers import only_payload

MODELS = {"health": only_payload}
