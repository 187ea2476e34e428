"""Each command that writes leaves the rows and the audit entries of its API call; only the actor differs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db.models import Model
from rest_framework.test import APIClient

from gpus.models import AuditEntry, Pause, QuarantinedSlot, Server
from gpus.registry.audit import cli_actor
from jobs.domain.states import JobState
from jobs.models import ApiKey, Job, Tenant
from jobs.operations.tenants import create_key
from jobs.transitions import end_waiting
from tests.support.quarantines import quarantine_slot
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Run, Terminal

pytestmark = pytest.mark.django_db

ADMIN = "/api/v1/admin"
PASSING = (
    "_at",
    "since",
    "until",
    "created",
    "expiry_date",
    "place_us",
    "_key",
    "key",
    "prefix",
    "webhook_secret",
)
"""Fields that differ from one call to the next: times and secrets, by the end of their name."""


@dataclass
class Case:
    """make: an object to write to, and the words that name it. call, command: with `{0}`, `{1}` for those.
    second: a call after that one, where one command does both."""

    make: Callable[[QueueHarness, str], tuple[str, ...]]
    call: tuple[str, str, dict[str, Any]]
    command: str
    second: tuple[str, str, dict[str, Any]] | None = None


def server(queue: QueueHarness, name: str) -> tuple[str, ...]:
    queue.server(f"gpu-{name}")
    Server.objects.filter(name=f"gpu-{name}").update(machine=f"box-{name}")
    return f"gpu-{name}", f"box-{name}"


def switched_off(queue: QueueHarness, name: str) -> tuple[str, ...]:
    words = server(queue, name)
    Server.objects.filter(name=words[0]).update(desired="off")
    return words


def tenant(queue: QueueHarness, name: str) -> tuple[str, ...]:
    row = Tenant.objects.create(name=f"acme-{name}")
    return row.name, str(row.pk)


def paused(kind: str) -> Callable[[QueueHarness, str], tuple[str, ...]]:
    def make(queue: QueueHarness, name: str) -> tuple[str, ...]:
        words = tenant(queue, name) if kind == "tenant" else model(queue, name)
        named = {"tenant": words[-1], "model": words[0], "system": ""}[kind]
        Pause.objects.create(kind=kind, name=named, since=queue.clock.now(), actor="user:ann")
        return words

    return make


def model(queue: QueueHarness, name: str) -> tuple[str, ...]:
    queue.server(f"gpu-{name}")
    return ("m",)


def key(queue: QueueHarness, name: str) -> tuple[str, ...]:
    row, _ = create_key(Tenant.objects.create(name=f"acme-{name}"), name="batch jobs")
    return row.prefix, row.tenant.name


def waiting(queue: QueueHarness, name: str) -> tuple[str, ...]:
    queue.server(f"gpu-{name}")
    return queue.job(tags=[name]).id, name


def dead_letter(queue: QueueHarness, name: str) -> tuple[str, ...]:
    queue.server(f"gpu-{name}")
    job = queue.job(push=False, tags=[name])
    end_waiting(job.id, JobState.FAILED, queue.clock.now(), code="run_failed", message="exit code 1")
    return job.id, name


def quarantined(queue: QueueHarness, name: str) -> tuple[str, ...]:
    queue.server(f"gpu-{name}")
    job = queue.job()
    lease = queue.claim()
    quarantine_slot(queue, lease)
    return lease.slot.removesuffix("/0"), job.id, lease.attempt_id


CASES = {
    "drain": Case(server, ("patch", "servers/{0}", {"desired": "draining"}), "drain {0}"),
    "off": Case(server, ("patch", "servers/{0}", {"desired": "off"}), "off {0}"),
    "on": Case(switched_off, ("patch", "servers/{0}", {"desired": "on"}), "on {0}"),
    "drain --machine": Case(
        server, ("patch", "machines/{1}", {"desired": "draining"}), "drain --machine {1}"
    ),
    "pause model": Case(
        model, ("post", "models/{0}/pause", {"reason": "why"}), "pause model {0} --reason why"
    ),
    "resume model": Case(paused("model"), ("post", "models/{0}/resume", {}), "resume model {0}"),
    "pause tenant": Case(
        tenant, ("post", "tenants/{0}/pause", {"reason": "why"}), "pause tenant {0} --reason why"
    ),
    "resume tenant": Case(paused("tenant"), ("post", "tenants/{0}/resume", {}), "resume tenant {0}"),
    "pause system": Case(model, ("post", "pause", {"reason": "why"}), "pause system --reason why --yes"),
    "resume system": Case(paused("system"), ("post", "resume", {}), "resume system"),
    "free": Case(
        quarantined,
        ("post", "servers/{0}/slots/0/free", {"reason": "seen"}),
        "free {0}/0 --reason seen --yes",
    ),
    "cancel ID": Case(waiting, ("post", "/api/v1/queue/jobs/{0}/cancel", {}), "cancel {0}"),
    "cancel --tag": Case(
        waiting, ("post", "jobs/cancel", {"filter": {"tag": "{1}"}}), "cancel --tag {1} --yes"
    ),
    "dlq retry ID": Case(dead_letter, ("post", "dlq/{0}/retry", {}), "dlq retry {0}"),
    "dlq dismiss ID": Case(dead_letter, ("delete", "dlq/{0}", {}), "dlq dismiss {0}"),
    "dlq retry --tag": Case(
        dead_letter, ("post", "jobs/retry", {"filter": {"tag": "{1}"}}), "dlq retry --tag {1} --yes"
    ),
    "dlq dismiss --tag": Case(
        dead_letter, ("post", "dlq/dismiss", {"filter": {"tag": "{1}"}}), "dlq dismiss --tag {1} --yes"
    ),
    "create_key": Case(
        tenant,
        ("post", "tenants/{0}/keys", {"name": "nightly", "scopes": ["read"], "allowed_models": ["m"]}),
        "create_key --tenant {0} --name nightly --scope read --model m",
    ),
    "create_key with limits": Case(
        tenant,
        (
            *("patch", "tenants/{0}"),
            {"weight": 2.0, "max_running": 3, "submits_per_second": 0.5, "allowed_models": ["m"]},
        ),
        "create_key --tenant {0} --name k --operator --weight 2 --max-running 3 --rate 0.5 --tenant-model m",
        second=("post", "tenants/{0}/keys", {"name": "k", "kind": "operator"}),
    ),
    "keys rotate": Case(
        key,
        ("post", "tenants/{1}/keys/{0}/rotate", {"overlap_seconds": 7200}),
        "keys rotate {0} --overlap-hours 2",
    ),
    "keys revoke": Case(key, ("post", "tenants/{1}/keys/{0}/revoke", {}), "keys revoke {0} --yes"),
}


def filled(value: Any, words: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, words) for name, one in value.items()}
    return value.format(*words) if isinstance(value, str) else value


ROWS = (Server, Pause, QuarantinedSlot, Job, Tenant, ApiKey)


def rows_of(names: dict[str, str]) -> dict[str, dict[Any, Any]]:
    """By model and primary key: all fields but those that pass, with the object's own words made the same."""
    found: dict[str, dict[Any, Any]] = {}
    for kind in ROWS:
        found[kind.__name__] = {row.pk: _alike(_fields(row), names) for row in kind.objects.all()}
    return found


def _fields(row: Model) -> dict[str, Any]:
    given = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    return {
        name: value if not name.endswith(PASSING) else value is not None
        for name, value in given.items()
        if not name.endswith(("id", "actor")) and name not in ("name", "last_used_at")
    }


def _alike(value: Any, names: dict[str, str]) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.+]+", "TIME", json.dumps(value, default=str, sort_keys=True))
    for word, stands_for in sorted(names.items(), key=lambda item: -len(item[0])):
        for lead, end in (('"', '"'), (":", ""), ("by ", "")):
            text = text.replace(f"{lead}{word}{end}", f"{lead}{stands_for}{end}")
    return text


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_command_writes_what_the_api_writes(case: Case, queue: QueueHarness, terminal: Terminal) -> None:
    operator, plaintext = create_key(Tenant.objects.create(name="ops"), ApiKey.Kind.OPERATOR)
    client = APIClient(headers={"Authorization": f"Bearer {plaintext}"})

    def by_api(words: tuple[str, ...]) -> str:
        for method, path, body in filter(None, (case.call, case.second)):
            url = path.format(*words) if path.startswith("/") else f"{ADMIN}/{path.format(*words)}"
            answer = getattr(client, method)(url, filled(body, words), format="json")
            assert answer.status_code < 300, answer.content
        return f"key:{operator.prefix}"

    def by_command(words: tuple[str, ...]) -> str:
        run: Run = terminal(*case.command.format(*words).split())
        assert run.status == 0, run.said
        return cli_actor()

    written = []
    for name, act in (("one", by_api), ("two", by_command)):
        words = case.make(queue, name)
        names = {word: f"word {number}" for number, word in enumerate(words)}
        last = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        before = rows_of(names)
        actor = act(words)
        after = rows_of({**names, actor: "the actor"})
        entries = AuditEntry.objects.filter(pk__gt=last).order_by("pk")
        assert {entry.actor for entry in entries} == {actor}
        changes = sorted(
            (kind, before[kind].get(pk, "-"), after[kind].get(pk, "-"))
            for kind in after
            for pk in before[kind].keys() | after[kind].keys()
            if before[kind].get(pk) != after[kind].get(pk)
        )
        assert changes
        details = [(one.action, _detail(one.detail, names)) for one in entries]
        written.append(
            (
                changes,
                details,
                [_target(one.target, names) for one in entries],
            )
        )
        Pause.objects.all().delete()
    assert written[0] == written[1]


def _target(target: str, names: dict[str, str]) -> str:
    """The prefix of a new key is random, and may begin like a word."""
    kind, _, name = target.partition(":")
    return '"key:new"' if kind == "key" and name not in names else _alike(target, names)


def _detail(detail: dict[str, Any], names: dict[str, str]) -> str:
    kept = {
        name: value for name, value in detail.items() if name not in ("new", "old_until", "paused_seconds")
    }
    return _alike(kept, names)
