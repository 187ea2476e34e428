from tests.gpu_host.handlers.models import Plain

MODELS = {
    "plain": Plain,
    "module": "tests.gpu_host.handlers.models",
    "function": "tests.gpu_host.handlers.models:only_payload",
}
