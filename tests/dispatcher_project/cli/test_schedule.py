"""`schedule`: store, show, preview, trigger, backfill, pause and delete, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpus.models import AuditEntry
from jobs import ports as job_ports
from tests.support.api_harness import ApiHarness
from tests.support.factories import make_model, make_tenant
from tests.support.fakes import ManualClock
from tests.support.terminal import run_command
from workflows.schedules.models import Schedule

pytestmark = pytest.mark.django_db(transaction=True)
NIGHTLY: dict[str, Any] = {
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "submit": {"model": "zimg", "payload": {"prompt": "x"}},
}


@pytest.fixture(autouse=True)
def tenant(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    api = ApiHarness(clock=ManualClock())
    monkeypatch.setattr(job_ports, "production_ports", lambda: api.ports)
    make_model("zimg")
    make_tenant("acme")


def schedule(*arguments: str) -> Any:
    return run_command("schedule", *arguments)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "nightly.json"
    path.write_text(json.dumps(NIGHTLY))
    return str(path)


def test_a_schedule_from_its_file_to_its_end(file: str) -> None:
    assert "no schedule" in schedule().said
    stored = schedule("put", "nightly", file)
    assert stored.said.startswith(
        "created nightly of acme: At 02:30 every day (Europe/Berlin); next 2026-01-01 01:30:00 UTC"
    )
    assert "nightly" in schedule().said
    assert schedule("preview", "nightly", "--count", "2").said.splitlines() == [
        "2026-01-01 01:30:00 UTC   2026-01-01 02:30:00+01:00",
        "2026-01-02 01:30:00 UTC   2026-01-02 02:30:00+01:00",
    ]
    started = schedule("trigger", "nightly", "--json").json
    span = ("--from", "2025-12-01T00:00:00Z", "--to", "2025-12-03T12:00:00Z")
    counted = schedule("backfill", "nightly", *span, "--dry-run").said
    assert counted.startswith("would start 3 due times")
    assert counted.endswith("UTC, one after the other (at once with --parallel)\n")
    assert schedule("backfill", "nightly", *span, "--json").json["count"] == 3
    shown = schedule("show", "nightly", "--json").json
    assert [one["outcome"] for one in shown["firings"]].count("waiting") == 3
    assert started["job_id"] in schedule("show", "nightly").said
    assert "3 firings of a backfill wait" in schedule("show", "nightly").said
    assert " 3 " in schedule().said
    cancelled = schedule("cancel-backfills", "nightly").said
    assert cancelled == "cancelled 3 waiting firings of backfills; what was started goes on\n"
    assert schedule("cancel-backfills", "nightly", "--json").json == {"count": 0}
    assert schedule("pause", "nightly", "--reason", "holidays", "--json").json["paused"]
    paused = schedule("show", "nightly").said
    assert "holidays" in paused
    assert "next: none, until it is resumed" in paused
    assert schedule("--json").json[0]["next_due_at"] is None
    assert schedule("preview", "nightly", "--count", "1").said.splitlines() == [
        "paused: nothing is due until it is resumed; if it were resumed now:",
        "2026-01-01 01:30:00 UTC   2026-01-01 02:30:00+01:00",
    ]
    assert "next none, until it is resumed" in schedule("pause", "nightly").said
    assert not schedule("resume", "nightly", "--json").json["paused"]
    assert schedule("delete", "nightly").said == "deleted nightly\n"
    assert not Schedule.objects.exists()
    entries = AuditEntry.objects.order_by("pk").values_list("action", "target")
    assert set(entries) == {
        (f"{action}_schedule", "schedule:acme/nightly")
        for action in ("put", "trigger", "backfill", "cancel_backfills_of", "pause", "resume", "delete")
    }


def test_times_are_those_of_other_commands(file: str) -> None:
    schedule("put", "nightly", file)
    assert "would start 2 due times" in schedule("backfill", "nightly", "--from", "2d", "--dry-run").said
    span = ("--from", "2025-12-01", "--to", "30d", "--dry-run")
    assert "would start 1 due time, 2025-12-01 01:30:00" in schedule("backfill", "nightly", *span).said
    assert (
        schedule("pause", "nightly", "--until", "2h", "--json").json["paused_until"] == "2026-01-01T02:00:00Z"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show",), "show takes a name"),
        (("list", "x"), "list takes no name"),
        (("put", "x"), "put takes a name and a JSON file"),
        (("put", "x", "/nowhere"), "/nowhere: No such file"),
        (("show", "x"), "there is no schedule x of any tenant; `schedule list` shows all"),
        (("backfill", "x", "--from", "yesterday"), "--from: 'yesterday' is not a time such as"),
        (("backfill", "x"), "backfill takes --from TIME"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    ran = schedule(*arguments)
    assert ran.status != 0
    assert ran.said.startswith(says)


def test_a_file_is_previewed_before_it_is_stored(file: str) -> None:
    lines = schedule("preview", "nightly", file, "--count", "1").said.splitlines()
    assert lines == ["2026-01-01 01:30:00 UTC   2026-01-01 02:30:00+01:00"]
    Path(file).write_text(json.dumps({**NIGHTLY, "jitter_seconds": 600}))
    assert "due 2026-01-01 02:30:00+01:00, later by its jitter" in schedule("preview", "nightly", file).said
    Path(file).write_text(json.dumps({**NIGHTLY, "cron": "0 0 31 2 *"}))
    assert schedule("preview", "nightly", file).said.startswith("/cron: ")
    assert not Schedule.objects.exists()


def test_firings_are_paged(file: str) -> None:
    schedule("put", "nightly", file)
    assert schedule("firings", "nightly").said == "no firing matches\n"
    assert "would start 3" in schedule("backfill", "nightly", "--from", "3d", "--dry-run").said
    schedule("backfill", "nightly", "--from", "12d", "--parallel")
    schedule("trigger", "nightly")
    assert "schedule firings nightly`\n" in schedule("show", "nightly").said
    first = schedule("firings", "nightly", "--limit", "8", "--json").json
    rest = schedule("firings", "nightly", "--before", first["before"].lower(), "--json").json
    ids = [one["firing_id"] for one in first["results"] + rest["results"]]
    assert (len(ids), ids, rest["before"]) == (13, sorted(ids, reverse=True), None)
    assert f"--before {first['before']}" in schedule("firings", "nightly", "--limit", "8").said
    started = schedule("firings", "nightly", "--outcome", "started", "--json").json["results"]
    assert [one["outcome"] for one in started] == ["started"]


def test_a_pause_ends_later_than_now(file: str) -> None:
    schedule("put", "nightly", file)
    refused = schedule("pause", "nightly", "--until", "2020-01-01")
    assert "a pause ends later than that" in refused.said
    assert not schedule("show", "nightly", "--json").json["paused"]


def test_errors_of_the_file_name_their_places(file: str) -> None:
    Path(file).write_text(json.dumps({**NIGHTLY, "cron": "0 0 31 2 *"}))
    assert schedule("put", "nightly", file).said.startswith("/cron: ")
