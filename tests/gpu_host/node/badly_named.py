"""Its model would hide a path of the node's own."""

from tests.gpu_host.node.custom_handlers import only_payload

MODELS = {"health": only_payload}
