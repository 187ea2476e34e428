"""Receivers that never answer: real sockets that accept and stay silent, or send a byte now and then."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress

TRICKLE_SECONDS = 0.2


class Tarpit:
    """Many ports, one thread. Each third port trickles."""

    def __init__(self, ports: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._listeners = [socket.create_server(("127.0.0.1", 0), backlog=128) for _ in range(ports)]
        self._held: list[socket.socket] = []
        self._trickling: list[socket.socket] = []
        self.accepted = 0
        self._stop = threading.Event()
        for at, listener in enumerate(self._listeners):
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, at % 3 == 0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{one.getsockname()[1]}/hook" for one in self._listeners]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for one in (*self._listeners, *self._held):
            one.close()
        self._selector.close()

    def _run(self) -> None:
        trickle_at = 0.0
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.02):
                with suppress(OSError):
                    sock, _ = key.fileobj.accept()  # type: ignore[union-attr]
                    self.accepted += 1
                    self._held.append(sock)
                    if key.data:
                        self._trickling.append(sock)
            if time.monotonic() >= trickle_at:
                trickle_at = time.monotonic() + TRICKLE_SECONDS
                for sock in self._trickling:
                    with suppress(OSError):
                        sock.send(b"H")
