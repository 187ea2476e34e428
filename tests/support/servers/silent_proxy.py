"""A TCP proxy that can fall silent: a partition in which packets vanish without an error."""

from __future__ import annotations

import select
import socket
import struct
import threading


class SilentProxy:
    """Forwards to `target` port. `silence`: nothing is read or sent any more, connections stay; `heal`: what
    waited flows on. `reset`: every connection ends with a RST."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def silence(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    def reset(self) -> None:
        with self._lock:
            for end in list(self._pairs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()
            self._pairs.clear()

    def close(self) -> None:
        self._closing = True
        self._open.set()
        self._thread.join(5)
        self.reset()
        self._listener.close()

    def _forward(self) -> None:
        while not self._closing:
            self._open.wait()
            with self._lock:
                ends = [end for end in self._pairs if end.fileno() >= 0]
                try:
                    readable, _, _ = select.select([self._listener, *ends], [], [], 0.02)
                except OSError:
                    continue
                for end in readable:
                    if end is self._listener:
                        self._accept()
                    else:
                        self._pass_on(end)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        self._pairs[client], self._pairs[server] = server, client

    def _pass_on(self, end: socket.socket) -> None:
        other = self._pairs.get(end)
        if other is None:
            return
        try:
            data = end.recv(65536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for broken in (end, other):
            self._pairs.pop(broken, None)
            broken.close()
