"""GPU servers whose answers no honest server would send."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from verification.hostile.attacks.base import GPU_SERVER, Attack, wait_until
from verification.hostile.attacks.secrets import finished_job
from verification.hostile.gpu import HEALTHY, CraftedReply, ReceivedRequest, json_reply
from verification.hostile.wire import flood
from verification.proving import own_redis

if TYPE_CHECKING:
    from verification.hostile.environment import Environment


class HostileGpu(Attack):
    """A server of one model with `behave`, and jobs of the attacker for it. fields: of the registration."""

    attacker = GPU_SERVER
    slots, jobs = 4, 8
    fields: dict[str, Any] = {}
    path = "/run"

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        """Return the server's answer; None for the default."""
        raise NotImplementedError

    def prepare(self, env: Environment) -> None:
        self.model, self.server = env.hostile_server(
            self.id, self.behave, slots=self.slots, path=self.path, **self.fields
        )

    def play(self, env: Environment, until: float) -> None:
        if self.jobs:
            body = {"jobs": [{"model": self.model, "payload": self.payload()}] * self.jobs}
            batch = self.ask(env, "POST", "/api/v1/queue/submit-batch", body=body)
            self.ids = [row.get("job_id", "") for row in batch.rows]
        time.sleep(max(0.0, until - time.monotonic()))

    def payload(self) -> Any:
        """Return the payload of the job that runs on the hostile server."""
        return {}

    def end(self, env: Environment) -> None:
        env.end_model(self.id)


class Refusals(HostileGpu):
    id, title = "s31", "a server that answers 409 stale_fence and 503 Retry-After: 0 to every run"
    seconds, jobs = 15.0, 2

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        if asked.method != "POST" or "cancel" in asked.path:
            return None
        self.turn = getattr(self, "turn", 0) + 1
        if self.turn % 2:
            return json_reply({"code": "stale_fence"}, 409)
        return json_reply({"code": "busy"}, 503, Retry_After="0")

    def check(self, env: Environment) -> None:
        size = len(env.job(self.ids[0]).body)
        self.figures |= {"runs a second": round(self.turn / 15.0, 1), "bytes of the job": size}
        self.must(self.turn <= 60, f"it was asked {self.turn} times in 15 s")
        self.must(size <= 65_536, f"the job's answer has {size} bytes")


class ManyAnswers(HostileGpu):
    id, title = "s23", "12 slots answer 16.5 MB of [] each"
    seconds, slots, jobs = 15.0, 12, 24
    fields = {"max_response_bytes": 17_000_000, "max_retries": 0}

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        return CraftedReply((_LISTS,)) if asked.method == "POST" else None


_LISTS = b'{"status":"success","result":[' + b"[]," * 5_500_000 + b"[]]}"


class FlatAnswers(HostileGpu):
    id, title = "n31", "12 slots answer 4 MB of short numbers each, just under the bounds of values"
    seconds, slots, jobs = 15.0, 12, 36
    fields = {"max_response_bytes": 17_000_000, "max_retries": 0}

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        return CraftedReply((_NUMBERS,)) if asked.method == "POST" else None


_NUMBERS = b'{"status":"success","result":[' + b"1," * 1_999_000 + b"1]}"


class ByteUnder(HostileGpu):
    id, title = "n16", "100 jobs with results one byte under the limit of 1 MB, read again and again"
    seconds, slots, jobs = 12.0, 4, 100
    fields = {"max_response_bytes": 1_000_000, "max_retries": 0}

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        start, end = b'{"status":"success","result":"', b'"}'
        return (
            CraftedReply((start, b"x" * (999_999 - len(start) - len(end)), end))
            if asked.method == "POST"
            else None
        )

    def play(self, env: Environment, until: float) -> None:
        super().play(env, time.monotonic() + 4.0)
        flood(
            lambda n: self.note(env.job(self.ids[n % len(self.ids)]), "GET job"),
            workers=8, until=until, at_most=1500,
        )  # fmt: skip
        self.ask(env, "GET", "/api/v1/queue/jobs?limit=200")


class LongHealth(HostileGpu):
    id, title = "s02", "1 MB of /metrics without a closing brace, of an openai server"
    seconds, jobs = 10.0, 0
    fields = {"model_type": "openai"}
    path = ""

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        if asked.path.endswith("/metrics"):
            return CraftedReply((b"vllm:num_requests_running{a\n" * 37_000,), kind="text/plain")
        return json_reply({"data": []}) if asked.method == "GET" else None

    def check(self, env: Environment) -> None:
        self.figures["asked"] = self.server.asked["GET /metrics"]
        self.must(self.server.asked["GET /metrics"] > 0, "its metrics were not asked for")


class BadHealth(HostileGpu):
    """Empties Redis: the index must be rebuilt although the server's health can't be read."""

    seconds, jobs, recovery_seconds = 3.0, 0, 20.0
    judges_neighbour = False
    needs_processes = True

    def health(self) -> bytes:
        """Return the body that the server sends for its health check."""
        raise NotImplementedError

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        return CraftedReply((self.health(),)) if asked.method == "GET" else None

    def play(self, env: Environment, until: float) -> None:
        wait_until(lambda: self.server.asked["GET /health"] > 0, 10.0)
        own_redis.flush(env.system.redis_url)
        time.sleep(max(0.0, until - time.monotonic()))


class DeepHealth(BadHealth):
    id, title = "s01", "a health answer nested 100,000 deep while Redis is emptied"

    def health(self) -> bytes:
        """Return 100,000 nested lists."""
        return b'{"jobs":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


class SurrogateHealth(BadHealth):
    id, title = "s01b", "half a surrogate and a NUL as ids of running jobs while Redis is emptied"

    def health(self) -> bytes:
        """Return texts that a database cannot store: half a surrogate pair and NUL."""
        jobs = [{"job_id": "\ud800", "attempt": "\ud800"}, {"job_id": "\x00", "attempt": "\x00"}]
        return json.dumps({**HEALTHY, "boot_id": "\ud83d", "jobs": jobs}).encode()


class ManyHealthy(HostileGpu):
    id, title = "n32", "health answers that list 100,000 running jobs, with numbers out of range"
    seconds, jobs = 8.0, 0

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        if asked.method != "GET":
            return None
        jobs = [{"job_id": f"j{n}", "attempt": f"a{n}"} for n in range(100_000)]
        return json_reply({**HEALTHY, "active_jobs": 10**300, "max_concurrent": -5, "jobs": jobs})


class Drips(HostileGpu):
    id, title = "n29", "servers that drip their answers, send endless heads, or hang up half-way"
    seconds, slots, jobs = 10.0, 8, 24
    fields = {"max_retries": 0, "max_run_seconds": 5}

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        if asked.method != "POST" or "cancel" in asked.path:
            return None
        turn = self.server.asked[f"POST {asked.path}"] % 3
        if turn == 0:
            return CraftedReply(_slowly(2000), length=100_000)
        if turn == 1:
            return CraftedReply((b"{}",), headers={f"X-{n}": "y" * 1000 for n in range(2000)})
        return CraftedReply((b'{"status":',), length=500_000)


def _slowly(pieces: int) -> Iterator[bytes]:
    yield b"{"
    for _ in range(pieces):
        time.sleep(0.05)
        yield b" "


class Progress(HostileGpu):
    id, title = "n15", "progress and 20,000 pieces of output from a streaming server"
    seconds, slots, jobs = 12.0, 4, 12
    fields = {"model_type": "openai", "max_retries": 0}
    path = "/v1"

    def payload(self) -> Any:
        """Return a streamed chat request."""
        return {"messages": [{"role": "user", "content": "x"}], "stream": True}

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        if asked.method != "POST":
            return json_reply({"data": []})
        piece = json.dumps({"choices": [{"index": 0, "delta": {"content": "x"}}]})
        line = f"data: {piece}\n\n".encode()
        pieces = itertools.chain(itertools.repeat(line, 20_000), (b"data: [DONE]\n\n",))
        return CraftedReply(pieces, length=-1, kind="text/event-stream")


class Redirects(HostileGpu):
    id, title = "n33", "redirects to the metadata service, and a poll URL of another host"
    seconds, jobs = 6.0, 4
    fields = {"max_retries": 0}

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        if asked.path == "/planted":
            return json_reply({"status": "success", "result": "planted"})
        return json_reply({}, 307, Location=f"http://127.0.0.1:{self.server.port}/planted")

    def check(self, env: Environment) -> None:
        self.must(
            not self.server.asked["GET /planted"] + self.server.asked["POST /planted"],
            "a redirect was followed",
        )


class OddResults(HostileGpu):
    id, title = "n34", "results with NUL, half surrogates, huge numbers, wrong types and odd statuses"
    seconds, slots, jobs = 8.0, 4, 12
    fields = {"max_retries": 0}
    _ANSWERS = (
        b'{"status":"success","result":"\\u0000"}',
        b'{"status":"success","result":"\\ud800"}',
        b'{"status":"success","result":1e999}',
        b'{"status":"success","result":' + b"9" * 5000 + b"}",
        b'{"status":"success","result":NaN}',
        b'{"status":["success"],"result":1}',
        b'{"status":"failed","error":{"message":["\\ud800\\u0000"]},"error_code":5,"traceback":{"a":1}}',
        b'{"status":"failed","error":"\\u001b[2J\\u202eplanted","error_code":"\\ud800","error_type":"\\u0000"}',
        b"\xff\xfe\x00",
        b"null",
        b'{"status":"success","result":{"a":1,"a":2},"usage":{"tokens":"x","n":1e308}}',
        b'{"status":"processing","job_id":"../../admin?x=\\u0000"}',
    )

    def behave(self, asked: ReceivedRequest) -> CraftedReply | None:
        if asked.method != "POST" or "cancel" in asked.path:
            return None
        return CraftedReply((self._ANSWERS[self.server.asked["POST /run"] % len(self._ANSWERS)],))

    def play(self, env: Environment, until: float) -> None:
        super().play(env, time.monotonic() + 2.0)
        for job_id in self.ids:  # the last one may wait: the server's circuit is open by then
            answer = self.note(finished_job(env, job_id, 1.0), "GET a job with an odd result")
            self.must(answer.status == 200, f"a job with an odd result was answered {answer.label}")


ATTACKS = (
    LongHealth, ManyHealthy, Refusals, OddResults, Redirects, Drips, Progress, ByteUnder, FlatAnswers,
    ManyAnswers, DeepHealth, SurrogateHealth,
)  # fmt: skip
