"""A TCP proxy before PostgreSQL that loses the answers to COMMIT."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections


class CommitCutter:
    """Forwards to the target. The first `cuts` commits reach it, and their connections break before their
    answers come back."""

    def __init__(self, target: tuple[str, int], cuts: int) -> None:
        self.left = cuts
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            answers = threading.Event()
            answers.set()
            for source, sink, is_client in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, answers, is_client), daemon=True
                ).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, answers: threading.Event, is_client: bool
    ) -> None:
        try:
            while data := source.recv(65536):
                if is_client and b"COMMIT" in data and self.left > 0:
                    self.left -= 1
                    answers.clear()
                if not is_client and not answers.is_set():
                    break  # it is committed, and its answer lost
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting_commits(cuts: int) -> Iterator[CommitCutter]:
    """Between this process and its database."""
    wrapper: Any = connections["default"]
    before = {name: wrapper.settings_dict[name] for name in ("HOST", "PORT")}
    cutter = CommitCutter((before["HOST"] or "127.0.0.1", int(before["PORT"] or 5432)), cuts)
    wrapper.close()
    wrapper.settings_dict.update(HOST="127.0.0.1", PORT=str(cutter.port))
    try:
        yield cutter
    finally:
        wrapper.close()
        wrapper.settings_dict.update(before)
        cutter.close()
