"""A module that names several models, as `gpu_worker --models` takes it."""

from tests.gpus.node.custom_handlers import Counting

MODELS = {"counting": Counting, "plain": "tests.gpus.node.custom_handlers:only_payload"}
