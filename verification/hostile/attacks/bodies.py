"""Small bodies that are expensive to process."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, Any

from verification.hostile.attacks.base import Attack
from verification.hostile.attacks.tenants import job
from verification.hostile.wire import exchange, flood, head, open_socket, status_of

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

_JSON = "application/json"
_SUBMIT, _BATCH = "/api/v1/queue/submit", "/api/v1/queue/submit-batch"


class ManyLists(Attack):
    id, title = "s03", "batches of 4 MB of empty lists"

    def play(self, env: Environment, until: float) -> None:
        body = b'{"jobs":[' + b"[]," * 1_390_000 + b"[]]}"
        sent = {"Content-Type": "application/json"}
        flood(
            lambda n: self.ask(env, "POST", _BATCH, body=body, headers=sent, timeout=60),
            workers=2,
            until=until,
            at_most=6,
        )


class UniqueItems(Attack):
    id, title = "s04", "200 KB for a schema with uniqueItems, 24 at a time"

    def prepare(self, env: Environment) -> None:
        self.model = f"{env.prefix}-unique"
        schema = {"type": "object", "properties": {"list": {"type": "array", "uniqueItems": True}}}
        env.register(self.model, f"http://127.0.0.1:{env.gpu.port}/x", payload_schema=schema)

    def play(self, env: Environment, until: float) -> None:
        values = [{"a": number} for number in range(14_000)]
        body = json.dumps({"model": self.model, "payload": {"list": values}}).encode()
        sent = {"Content-Type": "application/json"}
        flood(lambda n: self.submit(env, body, headers=sent), workers=24, until=until, at_most=72)  # type: ignore[arg-type]

    def end(self, env: Environment) -> None:
        env.unregister(self.model)


class Backtracking(Attack):
    id, title = "s05", "texts that cause catastrophic backtracking in a schema's pattern"

    def prepare(self, env: Environment) -> None:
        self.model = f"{env.prefix}-pattern"
        schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a|a|aa)+$"}}}
        answer = env.register(self.model, f"http://127.0.0.1:{env.gpu.port}/x", payload_schema=schema)
        self.figures["registered"] = answer.status

    def play(self, env: Environment, until: float) -> None:
        if self.figures["registered"] == 422:
            return
        for size in (28, 32, 40, 5000):
            if time.monotonic() < until:
                body = {"model": self.model, "payload": {"text": "a" * size + "!"}}
                self.submit(env, body, timeout=30)
        self.must(self.slowest < 5.0, f"one submit took {self.slowest:.1f} s")

    def end(self, env: Environment) -> None:
        env.unregister(self.model) if self.figures["registered"] != 422 else None


class Gzip(Attack):
    id, title = "n11", "bodies of 100 MB as 100 KB of gzip"

    def play(self, env: Environment, until: float) -> None:
        body = gzip.compress(b"[" + b" " * 100_000_000 + b"]")
        sent = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        flood(
            lambda n: self.ask(env, "POST", _BATCH, body=body, headers=sent),
            workers=4,
            until=until,
            at_most=200,
        )
        self.must(not any(label.startswith("2") for label in self.answers), "one was accepted")


class OddNumbers(Attack):
    id, title = "n23", "numbers of 5,000 digits, doubled names, half surrogates, NUL, a byte-order mark"
    seconds = 4.0
    _PAYLOADS = (
        '{"n": ' + "9" * 5000 + "}",
        '{"n": 1e400}',
        '{"n": -' + "1" * 400 + "}",
        '{"n": NaN}',
        '{"a": 1, "a": 2, "__proto__": {"x": 1}}',
        '{"t": "\\ud800"}',
        '{"t": "\\u0000"}',
        '{"t": "' + "\\u202e" * 2000 + '"}',
        '{"t": "' + "é" * 400_000 + '"}',
        '{"' + "k" * 900_000 + '": 1}',
        '{"o": ' * 63 + "1" + "}" * 63,
        '{"o": ' * 90_000 + "1" + "}" * 90_000,
        '{"e": ' + "0." + "0" * 300_000 + "1}",
    )

    def play(self, env: Environment, until: float) -> None:
        sent = {"Content-Type": "application/json"}

        def once(number: int) -> None:
            payload = self._PAYLOADS[number % len(self._PAYLOADS)]
            text = f'{{"model": "{env.shared_model}", "payload": {payload}}}'
            data = text.encode() if number % 3 else b"\xef\xbb\xbf" + text.encode("utf-8")
            self.submit(env, data, headers=sent)  # type: ignore[arg-type]

        flood(once, workers=4, until=until, at_most=len(self._PAYLOADS) * 6)

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class TinyChunks(Attack):
    id, title = "n03", "bodies of 40,000 chunks of one byte, on 16 connections"

    def play(self, env: Environment, until: float) -> None:
        start = head(
            "POST", _SUBMIT, key=env.attacker_key,
            headers={"Content-Type": _JSON, "Transfer-Encoding": "chunked", "Connection": "close"},
        )  # fmt: skip
        data = start + b"1\r\n \r\n" * 40_000 + b"2\r\n{}\r\n0\r\n\r\n"
        flood(lambda n: self._send(env, data), workers=16, until=until, at_most=64)

    def _send(self, env: Environment, data: bytes) -> None:
        said = exchange(env.url, data, timeout=20)
        with self._lock:
            self.answers[str(status_of(said))] += 1


class Expectations(Attack):
    id, title = "n12", "400 requests with Expect: 100-continue whose body never comes"
    seconds = 14.0

    def play(self, env: Environment, until: float) -> None:
        start = head(
            "POST", _SUBMIT, key=env.attacker_key,
            headers={"Content-Type": _JSON, "Content-Length": "200000", "Expect": "100-continue"},
        )  # fmt: skip
        self.open: list[Any] = []
        for _ in range(400):
            try:
                sock = open_socket(env.url, 2.0)
                self.open.append(sock)
                sock.sendall(start)
            except OSError:
                break
        self.figures["held"] = len(self.open)
        time.sleep(max(0.0, until - time.monotonic()))

    def end(self, env: Environment) -> None:
        for sock in self.open:
            sock.close()


class WideForms(Attack):
    id, title = "n19", "batches of 1,000 with 3.6 KB of metadata and 10 tags each, just under 4 MiB"
    seconds = 10.0

    def play(self, env: Environment, until: float) -> None:
        item = job(
            env, metadata={f"k{n}": "v" * 100 for n in range(33)}, tags=[f"tag-{n}" for n in range(10)],
            payload={"number": 0, "seconds": 0.0},
        )  # fmt: skip
        body = json.dumps({"jobs": [item] * 1000}).encode()
        sent = {"Content-Type": "application/json"}
        flood(
            lambda n: self.ask(env, "POST", _BATCH, body=body, headers=sent, timeout=60),
            workers=3,
            until=until,
            at_most=6,
        )
        self.ask(env, "GET", "/api/v1/queue/jobs?limit=200")

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


ATTACKS = (UniqueItems, Backtracking, Gzip, OddNumbers, TinyChunks, Expectations, WideForms, ManyLists)
