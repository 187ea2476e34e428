"""Which of the worker's environment variables its models' code gets to see: those on a list. Pure.

What is not on it stays with the worker: database and broker URLs, keys, tokens, whatever comes next.
`DISPATCHER_MODEL_ENVIRONMENT` adds names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_LISTED = re.compile(
    r"""
    (?# the system's)
    PATH | HOME | USER | LOGNAME | SHELL | HOSTNAME | LANG | LANGUAGE | LC_\w+ | TZ | TERM | TMPDIR | TEMP
    | TMP | XDG_\w+ | DBUS_\w+ | SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE
    | LD_LIBRARY_PATH | LD_PRELOAD | DYLD_\w+ | MALLOC_\w+ | PYTHON\w* | VIRTUAL_ENV
    (?# of libraries that models are made with)
    | (CUDA|CUDNN|CUBLAS|NVIDIA|NVCC|NCCL|HIP|HSA|ROCM|ROCR|TRITON|XLA|JAX|TF|TORCH|TORCHINDUCTOR|PYTORCH)_\w+
    | (CUPY|NUMBA|ONNXRUNTIME|ORT|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|TBB|VECLIB|CONDA)_\w+
    | (HF|HUGGINGFACE|TRANSFORMERS|TOKENIZERS|DIFFUSERS|DATASETS|ACCELERATE|SAFETENSORS|VLLM|OLLAMA|LLAMA)_\w+
    (?# what `up` finds its processes by)
    | GPU_DISPATCHER_UP_RUN
    """,
    re.VERBOSE,
)
_CREDENTIAL = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE_KEY|AUTH", re.IGNORECASE)


def for_models(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """also: further names, which may be credentials of the models' own (``HF_TOKEN``)."""
    named = frozenset(also)
    return {name: value for name, value in environment.items() if name in named or _is_listed(name)}


def _is_listed(name: str) -> bool:
    return _LISTED.fullmatch(name) is not None and _CREDENTIAL.search(name) is None
