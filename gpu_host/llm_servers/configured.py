"""The models of `gpu_worker --servers FILE`; the model process imports this module, which reads the file."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_host.llm_servers.declared import FILE_VARIABLE, read_file
from gpu_host.llm_servers.server import LlmServer

MODELS = {one.name: LlmServer(one) for one in read_file(Path(os.environ[FILE_VARIABLE]))}
