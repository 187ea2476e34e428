from tests.gpus.handlers.models import Plain

MODELS = {
    "plain": Plain,
    "module": "tests.gpus.handlers.models",
    "function": "tests.gpus.handlers.models:only_payload",
}
