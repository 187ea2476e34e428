"""A module with several models, as `gpu_worker --models` takes it."""

from tests.gpu_host.node.custom_handlers import Counting

MODELS = {"counting": Counting, "plain": "tests.gpu_host.node.custom_handlers:only_payload"}
