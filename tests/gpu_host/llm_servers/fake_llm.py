"""An LLM server in a process of its own: it uses memory, serves, and logs its runs to a file.

``python -m tests.gpu_host.llm_servers.fake_llm PORT MIB LOG [hang] [ollama]``: as Ollama it uses memory while
it keeps a model."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TextIO

from tests.support.servers.llm_server import Behaviour, LlmServer


class Ollama(LlmServer):
    """Uses memory for its models, and a while longer: like the real one it answers before that is freed."""

    mib = 0
    weights = b""

    def keep(self, model: str, is_kept: bool) -> None:
        if is_kept:
            self.loaded.add(model)
            self.weights = self.weights or filled(self.mib)
        else:
            threading.Timer(0.5, self._forget, (model,)).start()

    def _forget(self, model: str) -> None:
        self.weights = b""
        self.loaded.discard(model)


def filled(mib: int) -> bytes:
    return b"x" * (mib * 1024 * 1024)


def main(port: str, mib: str, log: str, *does: str) -> None:
    is_ollama = "ollama" in does
    weights = b"" if is_ollama else filled(int(mib))
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    behaviour = Behaviour(models=("llama", "other"), hang_after=2 if "hang" in does else None)
    with Path(log).open("a", buffering=1) as notes:
        notes.write(f"up {os.getpid()}\n")  # before it can answer: tests look up its process here
        server = (Ollama if is_ollama else LlmServer)(behaviour, port=int(port))
        if isinstance(server, Ollama):
            server.mib = int(mib)
        _serve(server, notes, over)
    del weights


def _serve(server: LlmServer, notes: TextIO, over: threading.Event) -> None:
    with server:
        said = 0
        while not over.wait(0.02):
            for path, what in server.log[said:]:
                notes.write(f"{what} {path}\n")
                said += 1
        notes.write("down\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
