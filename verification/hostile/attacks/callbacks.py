"""Attacks by callback URLs and by their receivers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from verification.hostile.attacks.base import RECEIVER, Attack
from verification.hostile.attacks.tenants import job
from verification.hostile.gpu import CraftedReply, HostileServer, ReceivedRequest, json_reply
from verification.hostile.wire import flood

if TYPE_CHECKING:
    from verification.hostile.environment import Environment


class Tarpit(Attack):
    id, title, attacker = "s08", "300 callbacks to a receiver that accepts and never answers", RECEIVER
    seconds, ends_within = 20.0, 5.0

    def prepare(self, env: Environment) -> None:
        self.pit = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def play(self, env: Environment, until: float) -> None:
        url = f"http://127.0.0.1:{self.pit.getsockname()[1]}/"
        body = job(env, payload={"number": 0, "seconds": 0.0}, callback_url=url)
        self.ask(env, "POST", "/api/v1/queue/submit-batch", body={"jobs": [body] * 300})
        time.sleep(max(0.0, until - time.monotonic()))

    def end(self, env: Environment) -> None:
        self.pit.close()
        env.cancel_all(env.shared_model, env.options.attacker)


class SlowNames(Attack):
    id, title = "s22", "64 submits at once whose callback names take the resolver two seconds"
    needs_processes = True

    def play(self, env: Environment, until: float) -> None:
        def once(number: int) -> None:
            url = f"http://n{number}.slow.test/hook"
            self.submit(env, job(env, callback_url=url, payload={"number": 0, "seconds": 0.0}))

        self.figures["submits"] = flood(once, workers=64, until=until, at_most=640)

    def skip(self, env: Environment) -> str:
        return "" if env.options.starts_its_own else "only a system of its own has a slow resolver"


class RunByCallback(Attack):
    id, title = "s11", "callback URLs that name a registered GPU server"
    seconds = 4.0

    def play(self, env: Environment, until: float) -> None:
        port = env.gpu.port
        urls = [
            f"http://{host}:{port}/{env.shared_model}/run"
            for host in ("127.0.0.1", "localhost", "127.1", "0x7f000001", "[::ffff:127.0.0.1]", "127.0.0.1.")
        ]
        for url in urls:
            self.submit(env, job(env, callback_url=url, payload={"number": 0, "seconds": 0.0}))
        time.sleep(max(0.0, until - time.monotonic()))
        direct = [line for line in env.gpu.log.read_text().splitlines() if '"direct' in line]
        self.figures["runs past the line"] = len(direct)
        self.must(not direct, f"the GPU server got {len(direct)} runs past the line")


class ToItself(Attack):
    id, title = "n14", "callback URLs that name the dispatcher itself, its Redis and the metadata service"
    seconds = 4.0

    def play(self, env: Environment, until: float) -> None:
        paths = ("/api/v1/queue/submit", "/api/v1/admin/pause", "/livez", "/metrics")
        accepted = []
        for url in [f"{env.url}{path}" for path in paths]:
            answer = self.submit(env, job(env, callback_url=url, payload={"number": 0, "seconds": 0.0}))
            accepted += [url] if answer.status == 202 else []
        for url in (
            "http://169.254.169.254/latest",
            "http://10.0.0.1/",
            "http://[fe80::1]/",
            "file:///etc/passwd",
        ):
            answer = self.submit(env, job(env, callback_url=url))
            self.must(answer.status == 422, f"{url} was answered {answer.label}")
        time.sleep(max(0.0, until - time.monotonic()))
        self.must(not accepted, f"callbacks go to the dispatcher itself: {', '.join(accepted)}")


class RudeReceiver(Attack):
    id, title, attacker = (
        "n28",
        "receivers that answer 1 GB, drip their heads, and redirect to the fleet",
        RECEIVER,
    )
    seconds, ends_within = 10.0, 5.0

    def prepare(self, env: Environment) -> None:
        target = f"http://127.0.0.1:{env.gpu.port}/{env.shared_model}/run"
        self.receiver = HostileServer(lambda asked: self._answer(asked, target))
        self.drip = socket.create_server(("127.0.0.1", 0), backlog=256)
        threading.Thread(target=self._drip, daemon=True).start()

    def _answer(self, asked: ReceivedRequest, target: str) -> CraftedReply:
        if asked.path == "/large":
            return CraftedReply((b"x" * 1_000_000 for _ in range(1000)), length=-1)
        return json_reply({}, 307, Location=target)

    def _drip(self) -> None:
        held: list[socket.socket] = []
        try:
            while True:
                self.drip.settimeout(0.5)
                with suppress(TimeoutError):
                    held.append(self.drip.accept()[0])
                for sock in held:
                    try:
                        sock.send(b"HTTP/1.1 200 OK\r\nX: "[len(held) % 20 :][:1] or b"x")
                    except OSError:
                        continue
        except OSError:
            return

    def play(self, env: Environment, until: float) -> None:
        urls = [
            f"http://127.0.0.1:{self.receiver.port}/large",
            f"http://127.0.0.1:{self.receiver.port}/move",
            f"http://127.0.0.1:{self.drip.getsockname()[1]}/",
        ]
        jobs = [job(env, callback_url=url, payload={"number": 0, "seconds": 0.0}) for url in urls * 20]
        self.ask(env, "POST", "/api/v1/queue/submit-batch", body={"jobs": jobs})
        time.sleep(max(0.0, until - time.monotonic()))
        direct = [line for line in env.gpu.log.read_text().splitlines() if '"direct' in line]
        self.must(not direct, "a redirect reached the GPU server")

    def end(self, env: Environment) -> None:
        self.drip.close()
        self.receiver.close()


ATTACKS = (RunByCallback, ToItself, SlowNames, RudeReceiver, Tarpit)
