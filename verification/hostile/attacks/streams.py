"""Event streams and long waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from verification.hostile.attacks.base import Attack
from verification.hostile.attacks.tenants import job
from verification.hostile.wire import IdleConnections, ask, exchange, flood, head, open_socket, status_of

if TYPE_CHECKING:
    from verification.hostile.environment import Environment


def waiting_job(env: Environment) -> str:
    """Submit a job of the attacker for the next hour; return its id."""
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    answer = ask(env.url, "POST", "/api/v1/queue/submit", key=env.attacker_key, body=job(env, run_at=later))
    return str(answer.said.get("job_id", "none"))


class ManyStreams(Attack):
    id, title = "X1", "1,100 event streams of one key"
    seconds = 12.0
    path = "/events"
    bounded = True
    """Whether the streams of one key must be limited, and refused with 429 beyond that."""

    def play(self, env: Environment, until: float) -> None:
        job_id = waiting_job(env)
        start = head("GET", f"/api/v1/queue/jobs/{job_id}{self.path}", key=env.attacker_key)
        self.connections = IdleConnections(env.url)
        self.connections.open(1100, start, until=until - 1)
        time.sleep(max(0.5, until - time.monotonic()))
        said = self.connections.said()
        for status in map(status_of, said):
            self.answers[str(status)] += 1
        self.figures["opened"] = len(self.connections.sockets)
        self.must(not self.bounded or self.answers["429"] > 0, "no stream was refused with 429")

    def end(self, env: Environment) -> None:
        self.connections.close()
        env.cancel_all(env.shared_model, env.options.attacker)


class LongWaits(ManyStreams):
    id, title = "n18", "1,100 waits (?wait=60) of one key"
    path, bounded = "?wait=60", False


class RevokedKey(Attack):
    id, title = "s09", "an event stream whose key is revoked"
    seconds = 62.0
    judges_neighbour = True

    def play(self, env: Environment, until: float) -> None:
        key = env.make_key(env.options.attacker)
        job_id = waiting_job(env)
        sock = open_socket(env.url, 2.0)
        sock.sendall(head("GET", f"/api/v1/queue/jobs/{job_id}/events", key=key))
        self.must(status_of(sock.recv(4096)) == 200, "the stream did not begin")
        env.revoke(key)
        revoked = time.monotonic()
        sock.settimeout(1.0)
        lasted = None
        while time.monotonic() < max(until, revoked + 61.0) and lasted is None:
            try:
                lasted = None if sock.recv(65536) else time.monotonic() - revoked
            except TimeoutError:
                continue
            except OSError:
                lasted = time.monotonic() - revoked
        sock.close()
        self.figures["stream lasted s"] = "over 61" if lasted is None else round(lasted, 1)
        self.must(lasted is not None and lasted <= 60.5, "the stream goes on 60 s after the key was revoked")
        self.must(self.ask(env, "GET", "/api/v1/queue/jobs", key=key).status == 401, "the key is still good")


class Reconnects(Attack):
    id, title = "n06", "streams of a job with many events, from the first event on, again and again"

    def prepare(self, env: Environment) -> None:
        self.job_id = waiting_job(env)

    def play(self, env: Environment, until: float) -> None:
        ids = ("0", "-1", "1", "9" * 30, "abc", "")

        def once(number: int) -> None:
            start = head(
                "GET", f"/api/v1/queue/jobs/{self.job_id}/events", key=env.attacker_key,
                headers={"Last-Event-ID": ids[number % len(ids)]},
            )  # fmt: skip
            status = status_of(exchange(env.url, start, timeout=0.3, at_most=1))
            with self._lock:
                self.answers[str(status)] += 1
            self.must(status < 500, f"Last-Event-ID {ids[number % len(ids)]} was answered {status}")

        self.figures["streams"] = flood(once, workers=16, until=until, at_most=3000)

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


ATTACKS = (ManyStreams, LongWaits, Reconnects, RevokedKey)
