"""Many valid requests."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from verification.hostile.attacks.base import Attack
from verification.hostile.attacks.streams import waiting_job
from verification.hostile.attacks.tenants import job
from verification.hostile.wire import flood

if TYPE_CHECKING:
    from verification.hostile.environment import Environment


class Keys(Attack):
    id, title = "n01", "submits as fast as 16 connections can, each with an idempotency key of 255 characters"

    def play(self, env: Environment, until: float) -> None:
        def once(number: int) -> None:
            body = job(env, payload={"number": number, "seconds": 0.0})
            self.submit(env, body, headers={"Idempotency-Key": secrets.token_hex(127)})

        self.figures["submits"] = flood(once, workers=16, until=until, at_most=4000)

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class Explains(Attack):
    id, title = "n30", "explain, estimate, stats and lists as fast as 12 connections can"

    def play(self, env: Environment, until: float) -> None:
        job_id = waiting_job(env)
        paths = (
            f"/api/v1/queue/jobs/{job_id}/explain",
            "/api/v1/queue/stats",
            "/api/v1/queue/jobs?limit=200",
            f"/api/v1/queue/jobs/{job_id}",
        )
        self.figures["requests"] = flood(
            lambda n: self.ask(env, "GET", paths[n % len(paths)]), workers=12, until=until, at_most=4000
        )

    def end(self, env: Environment) -> None:
        env.cancel_all(env.shared_model, env.options.attacker)


class Invalid(Attack):
    id, title = "n25", "refused keys, unknown paths and bad bodies as fast as 12 connections can"

    def play(self, env: Environment, until: float) -> None:
        def once(number: int) -> None:
            if number % 3 == 0:
                self.ask(env, "GET", "/api/v1/queue/jobs", key="a.b" * 10)
            elif number % 3 == 1:
                self.ask(env, "OPTIONS", f"/nowhere/{number}")
            else:
                self.submit(env, b"{" * 40)  # type: ignore[arg-type]

        self.figures["requests"] = flood(once, workers=12, until=until, at_most=4000)


ATTACKS = (Keys, Explains, Invalid)
