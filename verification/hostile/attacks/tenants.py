"""A tenant's jobs against the models and slots that it shares with others."""

from __future__ import annotations

import time
from threading import Thread
from typing import TYPE_CHECKING, Any

from verification.hostile.attacks.base import OPERATOR, Attack
from verification.hostile.wire import ask, flood

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

Body = dict[str, Any]


def job(env: Environment, **more: Any) -> Body:
    """Return the body of a submit for the shared model. more: further fields of the body."""
    return {"model": env.shared_model, "payload": {"number": 0, "seconds": 0.02}, **more}


def open_circuits(env: Environment) -> list[str]:
    """Return the names of servers and models whose circuit is open."""
    return [str(row.get("name")) for row in env.operator("GET", "/admin/circuits").rows]


class BreaksItsModel(Attack):
    """Jobs of the attacker on a model without other jobs; meanwhile the neighbour uses it too."""

    seconds = 12.0
    jobs = 40
    wait_seconds = 8.0
    cancellable = True

    def body(self, number: int) -> Body:
        raise NotImplementedError

    def prepare(self, env: Environment) -> None:
        more: Body = {"cancel_endpoint_template": "/cancel/{job_id}"} if self.cancellable else {}
        self.model = env.honest_model(self.id, max_retries=3, **more)

    def play(self, env: Environment, until: float) -> None:
        self._submit(env, self.jobs)
        time.sleep(2.0)
        more = Thread(target=self._submit_more, args=(env, until), daemon=True)
        more.start()
        done = env.neighbour_gets(self.model, 8, self.wait_seconds)
        self.figures["the neighbour's jobs done"] = f"{done} of 8"
        self.must(done == 8, f"{8 - done} of the neighbour's 8 jobs on that model were not done in 8 s")
        more.join()
        self.must(self.model not in open_circuits(env), "the model's circuit is open for all")

    def _submit(self, env: Environment, count: int) -> None:
        jobs = {"jobs": [{"model": self.model, **self.body(number)} for number in range(count)]}
        self.ask(env, "POST", "/api/v1/queue/submit-batch", body=jobs)

    def _submit_more(self, env: Environment, until: float) -> None:
        while time.monotonic() < until:
            self._submit(env, 8)
            time.sleep(0.5)

    def end(self, env: Environment) -> None:
        env.end_model(self.id)


class ShortRuns(BreaksItsModel):
    id, title = "s26", "40 jobs that are stopped after 10 ms or 1 s of running"

    def body(self, number: int) -> Body:
        return {"max_run_seconds": (0.01, 1.0)[number % 2], "payload": {"number": 0, "seconds": 5.0}}


class ShortRunsPlain(ShortRuns):
    id, title = "s26b", "the same on a server without /cancel"
    cancellable = False


class BadInputs(BreaksItsModel):
    id, title = "s25", "60 jobs whose payload makes the model fail"
    jobs = 60

    def body(self, number: int) -> Body:
        return {"payload": {"number": 0, "seconds": 0.0, "fault": "fail"}}


class Retries(Attack):
    id, title = "s20", "max_retries 100,000 for a model with a limit of 2"
    seconds = 3.0

    def prepare(self, env: Environment) -> None:
        env.register(f"{env.prefix}-two", f"http://127.0.0.1:{env.gpu.port}/x", max_retries=2)

    def play(self, env: Environment, until: float) -> None:
        answer = self.submit(env, {"model": f"{env.prefix}-two", "payload": {}, "max_retries": 100_000})
        self.must(answer.status == 422, f"it was answered {answer.label}")

    def end(self, env: Environment) -> None:
        env.unregister(f"{env.prefix}-two")


class Estimates(Attack):
    id, title = "s15", "estimates and refused submits from a tenant with a rate limit"
    seconds = 6.0

    def prepare(self, env: Environment) -> None:
        self._limit(env, 5)

    def _limit(self, env: Environment, rate: float | None) -> None:
        rules = {"submits_per_second": rate, "submit_burst": rate and 10}
        env.operator("PATCH", f"/admin/tenants/{env.options.attacker}", rules)

    def play(self, env: Environment, until: float) -> None:
        time.sleep(2.1)  # changes take effect within two seconds
        bodies = (job(env), {**job(env), "priority": 77})
        paths = ("/api/v1/queue/estimate", "/api/v1/queue/submit")
        flood(lambda n: self.ask(env, "POST", paths[n % 2], body=bodies[n % 2]), workers=4, until=until)
        self.must(
            any(label.startswith("429") for label in self.answers), "no estimate and no bad submit was a 429"
        )

    def end(self, env: Environment) -> None:
        self._limit(env, None)


class Urgency(Attack):
    id, title = "n21", "2,000 waiting jobs of the highest priority on the shared model"
    seconds = 10.0

    def play(self, env: Environment, until: float) -> None:
        jobs = {"jobs": [job(env, priority=1, payload={"number": 0, "seconds": 0.2}) for _ in range(1000)]}
        for _ in range(2):
            self.ask(env, "POST", "/api/v1/queue/submit-batch", body=jobs)
        time.sleep(max(0.0, until - time.monotonic()))

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class Monopoly(Attack):
    id, title = "n22", "8 jobs that hold every slot for 4 s each, again and again"
    seconds, ends_within = 10.0, 15.0

    def play(self, env: Environment, until: float) -> None:
        long = {"jobs": [job(env, payload={"number": 0, "seconds": 4.0}) for _ in range(24)]}
        self.ask(env, "POST", "/api/v1/queue/submit-batch", body=long)
        time.sleep(max(0.0, until - time.monotonic()))

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class CancelStorm(Attack):
    id, title = "n05", "the same 200 jobs cancelled again and again by 12 connections"

    def prepare(self, env: Environment) -> None:
        later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        jobs = {"jobs": [job(env, run_at=later) for _ in range(200)]}
        batch = self.ask(env, "POST", "/api/v1/queue/submit-batch", body=jobs)
        self.ids = [row["job_id"] for row in batch.rows if "job_id" in row] or ["none"]

    def play(self, env: Environment, until: float) -> None:
        ids = self.ids
        flood(
            lambda n: self.ask(env, "POST", f"/api/v1/queue/jobs/{ids[n % len(ids)]}/cancel"),
            workers=12,
            until=until,
        )


class ManyForLater(Attack):
    id, title = "n20", "3,000 jobs for one and the same second"
    seconds = 12.0

    def play(self, env: Environment, until: float) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))
        jobs = {"jobs": [job(env, run_at=at, payload={"number": 0, "seconds": 0.0}) for _ in range(1000)]}
        for _ in range(3):
            self.ask(env, "POST", "/api/v1/queue/submit-batch", body=jobs)
        time.sleep(max(0.0, until - time.monotonic()))

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class OneBadItem(Attack):
    id, title = "n13", "batches of 1,000 with one bad item, from 4 connections"

    def play(self, env: Environment, until: float) -> None:
        items: list[Any] = [
            job(env, tags=["x" * 50], payload={"number": 0, "seconds": 0.0}) for _ in range(1000)
        ]
        items[777] = {**job(env), "priority": "high"}
        jobs = {"jobs": items}
        flood(
            lambda n: self.ask(env, "POST", "/api/v1/queue/submit-batch", body=jobs, timeout=60),
            workers=4,
            until=until,
            at_most=12,
        )

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class OneKey(Attack):
    id, title = "n26", "one idempotency key with different bodies on 32 connections"

    def play(self, env: Environment, until: float) -> None:
        def once(number: int) -> None:
            body = job(env, payload={"number": number % 7, "seconds": 0.0})
            self.submit(env, body, headers={"Idempotency-Key": "the-same"})

        flood(once, workers=32, until=until, at_most=2000)


class MovedSecrets(Attack):
    id, title, attacker = "s21", "an endpoint moved to another origin, with its secret headers", OPERATOR
    seconds = 2.0

    def play(self, env: Environment, until: float) -> None:
        name = f"{env.prefix}-moved"
        env.register(name, "http://127.0.0.1:9/run", headers={"X-Secret": "planted-secret"})
        answer = env.register(name, "http://127.0.0.1:10/run")
        self.note(answer, "POST /admin/register")
        self.must(answer.status == 422, f"the move was answered {answer.label}")
        shown = ask(env.url, "GET", f"/api/v1/admin/servers/{name}", key=env.system.operator_key)
        self.must(b"planted-secret" not in shown.body, "the secret header is shown")

    def end(self, env: Environment) -> None:
        env.unregister(f"{env.prefix}-moved")


ATTACKS = (
    ShortRuns, ShortRunsPlain, BadInputs, Retries, MovedSecrets, Estimates, Urgency, Monopoly, CancelStorm,
    ManyForLater, OneBadItem,
    OneKey,
)  # fmt: skip
