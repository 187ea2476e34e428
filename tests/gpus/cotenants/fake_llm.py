"""An LLM server as a process of its own: holds memory, serves, and notes in a file what became of its runs.

``python -m tests.gpus.cotenants.fake_llm PORT MIB LOG [hang] [ollama]``: as Ollama it holds memory while it keeps a model.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from tests.gpus.runners.llm_server import Behaviour, LlmServer


def main(port: str, mib: str, log: str, *does: str) -> None:
    weights: list[bytearray] = []

    def hold(is_loaded: bool) -> None:
        weights[:] = [bytearray(b"x") * (int(mib) * 1024 * 1024)] if is_loaded else []

    hold("ollama" not in does)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    behaviour = Behaviour(models=("llama", "other"), hang_after=2 if "hang" in does else None)
    with LlmServer(behaviour, port=int(port)) as server, Path(log).open("a", buffering=1) as notes:
        if "ollama" in does:
            server.on_load = hold
        notes.write(f"up {os.getpid()}\n")
        said = 0
        while not over.wait(0.02):
            for path, what in server.log[said:]:
                notes.write(f"{what} {path}\n")
                said += 1
        notes.write("down\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
