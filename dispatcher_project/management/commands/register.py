from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand, positive_seconds, tenant_named
from dispatcher_project.cli.screen import plain, table
from dispatcher_project.management.commands.submit import (
    FAILED,
    NOT_ENDED,
    end_json,
    read_payload,
    submit,
    wait_for_end,
)
from gpus.health.health import Warning
from gpus.health.registration import register_and_check
from gpus.models import Server
from gpus.registry.audit import cli_actor
from gpus.registry.recognise import Findings, look_at, registration
from gpus.registry.registry import Registered
from gpus.registry.upload_url import upload_url
from gpus.runners.recognition import Proposal
from gpus.runners.registry import takes_uploads
from jobs.domain.states import JobState, is_final
from jobs.models import Job

TEST_SECONDS = 120.0
_LONGEST_RESULT = 2000


class Command(TerminalCommand):
    help = (
        "Look at a model server, register its models with the fields that fit its protocol, and run a test "
        "job for each. Exit status: 1 a test job failed, 3 one has not ended in time."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("url", help="the server's address, such as http://box-1:8000")
        parser.add_argument("--model", metavar="NAME", help="only this model of the server")
        parser.add_argument("--all", action="store_true", help="every model of the server")
        parser.add_argument("--as", dest="alias", metavar="NAME", help="name of the model here")
        parser.add_argument(
            "--server", metavar="NAME", help="name of the server here (default: its host and port)"
        )
        parser.add_argument("--slots", type=int, help="concurrent runs (default: what the server reports)")
        parser.add_argument("--pool", metavar="NAME", help="pool of a new model (default: its own)")
        parser.add_argument(
            "--header",
            action="append",
            default=[],
            metavar="'NAME: VALUE'",
            help="header of each request; stored encrypted",
        )
        parser.add_argument("--ca", type=Path, metavar="FILE", help="PEM of the server's own CA")
        parser.add_argument("--dry-run", action="store_true", help="show what would be registered")
        parser.add_argument("--payload", help="of the test job: JSON; - reads standard input, @FILE a file")
        parser.add_argument("--tenant", help="tenant of the test job (default: the operator's)")
        parser.add_argument("--no-test", action="store_true", help="run no test job")
        parser.add_argument(
            "--timeout", type=positive_seconds, default=TEST_SECONDS, metavar="SECONDS",
            help="limit of each test job (default %(default)g)",
        )  # fmt: skip
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        given: dict[str, Any] = {"headers": _headers(options["header"]), "ca_pem": _ca(options["ca"])}
        payload = None if options["payload"] is None else read_payload(options["payload"])
        if options["tenant"] is not None:
            tenant_named(options["tenant"])
        found = look_at(options["url"], **given)
        chosen = _chosen(found, options)
        bodies = _in_one_pool([_body(one, options) for one in chosen])
        if not self.as_json:
            self._show(found, chosen, bodies)
        if options["dry_run"]:
            if self.as_json:
                self.print_json({"register": bodies, "problems": found.problems})
            return None
        self.confirm(f"register {', '.join(body['model'] for body in bodies)}?", options)
        given = {name: value for name, value in given.items() if value}
        done = [self._register(body, given) for body in bodies]
        jobs_run: list[Job] = []
        if not options["no_test"]:
            for proposal, body in zip(chosen, bodies, strict=True):
                first = proposal.test_payload if options["payload"] is None else payload
                jobs_run += self._test(body["model"], first, options)
        if self.as_json:
            self.print_json(
                {
                    "registered": done,
                    "problems": found.problems,
                    "tests": [end_json(job) for job in jobs_run],
                }
            )
        if any(not is_final(JobState(job.state)) for job in jobs_run):
            return NOT_ENDED
        return FAILED if any(job.state != JobState.COMPLETED for job in jobs_run) else None

    def _show(self, found: Findings, chosen: list[Proposal], bodies: list[dict[str, Any]]) -> None:
        rows = [
            (body["model"], body["model_type"], plain(body["endpoint"]), str(body["slots"]))
            for body in bodies
        ]
        self.show(table(("model", "protocol", "endpoint", "slots"), rows), "")
        for sentence in dict.fromkeys(reason for one in chosen for reason in one.reasons):
            self.print(plain(sentence))
        for problem in found.problems:
            self.print(f"note: {plain(problem)}")

    def _register(self, body: dict[str, Any], secrets: Mapping[str, Any]) -> dict[str, Any]:
        ports = jobs.ports.production_ports()
        found, warnings = register_and_check({**body, **secrets}, by=cli_actor(), ports=ports)
        if not self.as_json:
            self._say_registered(found, warnings)
        return {
            **body,
            "created": found.created,
            "live": found.mirrored,
            "warnings": [one.detail for one in warnings],
        }

    def _say_registered(self, found: Registered, warnings: tuple[Warning, ...]) -> None:
        later = "" if found.mirrored else "; Redis is away, so it gets jobs once Redis is back"
        self.print(f"registered {found.config.name} on {found.server.name}{later}")
        if takes_uploads(found.config.model_type):
            self.print(f"start its container with --upload-url {upload_url(found.server)}")
        for warning in warnings:
            self.print(f"warning: {plain(warning.detail)}")

    def _test(self, model: str, payload: Any, options: dict[str, Any]) -> list[Job]:
        if payload is None:
            if not self.as_json:
                self.print(f"no test job: no payload is known; try one with `submit {model} '{{…}}' --wait`")
            return []
        if not self.as_json:
            self.print(f"test job: {model} {json.dumps(payload)[:_LONGEST_RESULT]}")
        submitted = submit(
            {"model": model, "payload": payload, "priority": 1}, tenant_named(options["tenant"])
        )
        job = wait_for_end(submitted.job.id, options["timeout"])
        if not self.as_json:
            self.print(_outcome(job))
        return [job]


def _chosen(found: Findings, options: dict[str, Any]) -> list[Proposal]:
    """Raises CommandError unless the options name one model, or all are wanted."""
    chosen = list(found.proposals)
    if options["model"] is not None:
        named = [one for one in chosen if options["model"] in (one.model, one.options.get("remote_model"))]
        if not named:
            raise CommandError(f"the server has no model {options['model']}; it has {_names(chosen)}")
        chosen = named
    if not chosen:
        raise CommandError(f"nothing to register was found. {' '.join(found.problems)}".strip())
    if len(chosen) > 1 and not options["all"]:
        raise CommandError(f"the server has {_names(chosen)}: choose one with --model, or --all")
    if len(chosen) > 1 and options["alias"] is not None:
        raise CommandError("--as names one model: choose it with --model")
    return chosen


def _names(proposals: list[Proposal]) -> str:
    return ", ".join(one.model for one in proposals)


def _body(proposal: Proposal, options: dict[str, Any]) -> dict[str, Any]:
    body = registration(proposal)
    changes = {
        "model": options["alias"],
        "server": options["server"],
        "slots": options["slots"],
        "pool": options["pool"],
    }
    return body | {name: value for name, value in changes.items() if value is not None}


def _in_one_pool(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A server is part of one pool: its own one if it is known, else that of its first model."""
    known = dict(
        Server.objects.filter(name__in=[body["server"] for body in bodies]).values_list("name", "pool")
    )
    for body in bodies:
        pool = known.setdefault(body["server"], body.get("pool", body["model"]))
        if pool != body["model"]:
            body.setdefault("pool", pool)
    return bodies


def _headers(lines: list[str]) -> dict[str, str] | None:
    """Raises CommandError."""
    pairs = [line.partition(":") for line in lines]
    if any(not name.strip() or not colon for name, colon, _ in pairs):
        raise CommandError("write a header as 'Name: value'")
    return {name.strip(): value.strip() for name, _, value in pairs} or None


def _ca(path: Path | None) -> str | None:
    """Raises CommandError."""
    if path is None:
        return None
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the CA: {error}") from None


def _outcome(job: Job) -> str:
    if not is_final(JobState(job.state)):
        return f"test job {job.id} is {job.state}; `job {job.id}` says why it waits"
    if job.state != JobState.COMPLETED:
        return f"test job {job.id} {job.state}: {job.error_code} {plain(job.error_message)}".rstrip()
    text = json.dumps(job.result, ensure_ascii=True)
    return (
        f"test job {job.id} completed: {text[:_LONGEST_RESULT]}{'…' if len(text) > _LONGEST_RESULT else ''}"
    )
