"""Requests whose head is the attack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from verification.hostile.attacks.base import ANY_CLIENT, Attack
from verification.hostile.attacks.tenants import job
from verification.hostile.wire import ask, exchange, flood, head, open_socket, status_of

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

_JOBS = "/api/v1/queue/jobs"


class Schema(Attack):
    id, title, attacker = "s24", "32 readers of the OpenAPI document", ANY_CLIENT
    seconds = 6.0

    def play(self, env: Environment, until: float) -> None:
        def once(number: int) -> None:
            self.ask(env, "GET", "/api/v1/schema", key="")

        flood(once, workers=32, until=until, at_most=400, pause=0.2)


class Headers(Attack):
    id, title, attacker = "n02", "heads of 60 KB, 1,000 lines, long names, and doubled ones", ANY_CLIENT
    seconds = 6.0

    def play(self, env: Environment, until: float) -> None:
        heads = (
            head("GET", "/livez", headers={f"X-{n}": "v" * 40 for n in range(1000)}),
            head("GET", "/livez", headers={"X" * 60_000: "v"}),
            head("GET", "/livez", headers={"Cookie": "a=b; " * 12_000}),
            head("GET", _JOBS, headers={"Authorization": "Bearer " + "x" * 60_000}),
            head("GET", _JOBS, key="'; DROP TABLE jobs; --"),
            head("GET", "/" + "a/" * 30_000),
            head("GET", _JOBS, key=env.attacker_key, headers={"Accept": ",".join(["a/b;q=0.1"] * 6000)}),
            head("GET", _JOBS, key=env.attacker_key, headers={"Accept-Encoding": "gzip," * 10_000}),
            head("GET", _JOBS, key=env.attacker_key, headers={"Range": "bytes=" + "0-1," * 10_000}),
            head("GET", _JOBS, key=env.attacker_key, headers={"Prefer": "wait=1," * 8000}),
        )

        def once(number: int) -> None:
            said = exchange(env.url, heads[number % len(heads)], timeout=2.0, at_most=1)
            with self._lock:
                self.answers[str(status_of(said))] += 1

        flood(once, workers=8, until=until, at_most=400)
        self.must(not any(label in ("500", "502") for label in self.answers), "one was answered 500")


class Queries(Attack):
    id, title = "n07", "10,000 parameters, deep names, long texts to search for"
    seconds = 6.0

    def play(self, env: Environment, until: float) -> None:
        queries = (
            "&".join(f"tag={n}" for n in range(8000)),
            "&".join(f"p{n}=1" for n in range(9000)),
            "status=" + ",".join(["queued"] * 7000),
            "tag" + "[a]" * 15_000 + "=1",
            "model=" + quote("%" * 15_000),
            "search=" + "a" * 50_000,
            "limit=99999999999999999999&offset=99999999999999999999",
            "created_after=" + "9" * 4000,
            "tag=" + quote("\x00\ud7ff" * 1000),
        )

        def once(number: int) -> None:
            self.ask(env, "GET", f"{_JOBS}?{queries[number % len(queries)]}")

        flood(once, workers=8, until=until, at_most=600)


class Cursors(Attack):
    id, title = "n08", "forged cursors, ids and positions"
    seconds = 5.0

    def play(self, env: Environment, until: float) -> None:
        cursors = (
            "cD0yMDI2", "A" * 30_000, "cj0xJnA9MQ==", "bz05OTk5OTk5OTk5OTk5", "%FF%FE", "-1", "' OR 1=1 --",
            "cD0lMDA=", "cD0lRjAlOUYlOTIlQTk=",
        )  # fmt: skip
        paths = [f"{_JOBS}?cursor={quote(cursor, safe='%')}" for cursor in cursors]
        paths += [
            f"{_JOBS}/{quote(one, safe='')}"
            for one in ("../../admin", "0" * 26, "Z" * 4000, "é", "%00", "a%2fb")
        ]
        paths += [f"{_JOBS}/x/events?last_event_id={n}" for n in ("-1", "9" * 400, "1e9", "%00")]
        paths += [f"{_JOBS}?attempts_before={n}" for n in ("-1", "9" * 400, "x")]
        flood(lambda n: self.ask(env, "GET", paths[n % len(paths)]), workers=6, until=until, at_most=600)


class Pipelining(Attack):
    id, title = "n09", "2,000 pipelined requests on each of 8 connections that never read"

    def play(self, env: Environment, until: float) -> None:
        data = head("GET", f"{_JOBS}?limit=50", key=env.attacker_key) * 2000
        sockets = [open_socket(env.url, 1.0) for _ in range(8)]

        def push(number: int) -> None:
            try:
                sockets[number].sendall(data)
            except OSError:
                with self._lock:
                    self.answers["blocked"] += 1

        flood(push, workers=8, until=until, at_most=8)
        time.sleep(max(0.0, until - time.monotonic()))
        for sock in sockets:
            sock.close()


class Confusables(Attack):
    id, title = "n10", "look-alike names, bidi controls and smuggled line ends in names, tags and heads"
    seconds = 4.0

    def play(self, env: Environment, until: float) -> None:
        names = (
            "ѕhared",
            "shared\u200b",
            "shared\u202e",
            "ＳＨＡＲＥＤ",
            "sha\u0301red",
            "shared\n",
            "shared\x00",
            "../x",
        )
        for number in range(80):
            if time.monotonic() > until:
                break
            name = names[number % len(names)]
            answer = self.submit(env, job(env, model=f"{env.prefix}-{name}"))
            self.must(answer.status in (404, 422), f"the model {name!a} was answered {answer.label}")
            self.submit(env, job(env, tags=[name], metadata={name: name}))
        smuggled = (
            head(
                "POST",
                "/api/v1/queue/submit",
                key=env.attacker_key,
                headers={"Content-Length": "5", "Transfer-Encoding": "chunked"},
            )
            + b"0\r\n\r\nGET /api/v1/admin/audit HTTP/1.1\r\nHost: x\r\n\r\n",
            head("POST", "/api/v1/queue/submit", key=env.attacker_key, headers={"Content-Length": "+5"})
            + b"{}   ",
            head("GET", "/livez", headers={"Transfer-Encoding": "xchunked"}) + b"0\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: b\rX-C: d\r\n\r\n",
            b"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: x\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"CONNECT 127.0.0.1:6379 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
        )
        for data in smuggled:
            status = status_of(exchange(env.url, data, timeout=1.0, at_most=1))
            self.answers[f"raw {status}"] += 1
            self.must(status < 500, f"{data[:40]!r} was answered {status}")

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class UnknownNames(Attack):
    id, title = "n04", "6,000 different models, paths, methods and keys, to blow caches and metrics"
    seconds = 10.0

    def prepare(self, env: Environment) -> None:
        self.before = self._metrics(env)

    def _metrics(self, env: Environment) -> int:
        token = env.settings().get("DISPATCHER_METRICS_TOKEN", "")
        return len(ask(env.url, "GET", "/metrics", key=token).body.splitlines())

    def play(self, env: Environment, until: float) -> None:
        def once(number: int) -> None:
            name = f"{number:05d}{'x' * 50}"
            if number % 3 == 0:
                self.submit(env, job(env, model=name))
            elif number % 3 == 1:
                self.ask(env, ("GET", "BREW", "PATCH")[number % 9 // 3], f"/api/v1/{name}")
            else:
                self.ask(env, "GET", _JOBS, key=f"{name}.{name}")

        self.figures["requests"] = flood(once, workers=6, until=until, at_most=6000)
        self.figures["metric lines"] = self._metrics(env) - self.before
        self.must(self.figures["metric lines"] < 100, "every name made a line of /metrics")


class Hosts(Attack):
    id, title = "n24", "foreign Host and Forwarded headers in the URLs of answers"
    attacker, seconds = ANY_CLIENT, 2.0

    def play(self, env: Environment, until: float) -> None:
        for headers in (
            {"Host": "evil.example"},
            {"X-Forwarded-Host": "evil.example"},
            {"Forwarded": "host=evil.example"},
            {"Host": "evil.example:99999"},
            {"Host": "a b"},
        ):
            answer = self.ask(env, "GET", f"{_JOBS}?limit=1", headers=headers)
            if "Host" not in headers:
                self.must(b"evil.example" not in answer.body, f"the answer names evil.example ({headers})")


ATTACKS = (Schema, Headers, Queries, Cursors, Pipelining, Confusables, UnknownNames, Hosts)
