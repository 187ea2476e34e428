"""A server's page: slots with what runs, the last hour, attempts, failures and controls, above the form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from admin_ui.dashboard.server_charts import (
    DAY,
    HOUR,
    Window,
    bars_of,
    curves,
    points_of_readings,
    points_of_summaries,
    run_lanes,
)
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Heartbeat, Measured, Spread, Summary
from gpus.models import Server
from jobs.models import Attempt, Job
from jobs.reports import server as server_runs
from jobs.reports.server import Run
from tests.admin_ui.forms import server_form
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts
from tests.support.fleet_views import view

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]
NAME = "flux-server-1"


def reading(age: float, *, warm: Sequence[str] = (), **gpu: float) -> Measured:
    return Measured(age, {"warm": list(warm), "cpu_percent": 7.0, **({"gpu": gpu} if gpu else {})})


@pytest.fixture(autouse=True)
def some(db: None) -> None:
    fill(jobs=24)


@pytest.fixture
def pinned(fake_ports: FakePorts, monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """The readings that the server's worker sent; empty at first."""
    Server.objects.filter(name=NAME).update(host="box-1")
    samples: list[Measured] = []
    leases = type(fake_ports.leases)
    beats: dict[str, Heartbeat] = {}
    monkeypatch.setattr(leases, "heartbeats", lambda self, servers: beats, raising=False)
    monkeypatch.setattr(leases, "telemetry", lambda self, server, within: samples, raising=False)
    monkeypatch.setattr(leases, "telemetry_summaries", lambda self, server, within: [], raising=False)
    return samples


def part(client: Client, name: str, server: str = NAME, **query: str) -> str:
    answer = client.get(reverse(f"admin:gpus_server_{name}", args=[server]), query)
    assert answer.status_code == 200
    return answer.content.decode()


def attempt(**values: Any) -> Attempt:
    job = Job.objects.order_by("id")[0]
    number = Attempt.objects.filter(job=job).count() + 100
    known = {"job": job, "number": number, "server": NAME, "slot": 0, "model": "flux", "state": "completed"}
    at = timezone.now() - timedelta(minutes=5)
    times = {"started_at": at, "finished_at": at + timedelta(seconds=7)}
    return Attempt.objects.create(id=f"{number:026}", **(known | times | values))


def test_the_page_loads_its_parts_and_has_the_form_under_edit(operator: Client, viewer: Client) -> None:
    address = reverse("admin:gpus_server_change", args=[NAME])
    page = operator.get(address).content.decode()
    for name in ("now", "charts", "runs"):
        assert f'hx-get="{reverse(f"admin:gpus_server_{name}", args=[NAME])}' in page
    assert re.search(r'<details class="panel edit">\s*<summary>Edit</summary>', page)
    assert page.index("<summary>Edit") < page.index('id="server_form"')
    assert "<summary>All fields</summary>" in viewer.get(address).content.decode()


def test_a_form_with_errors_is_open(operator: Client) -> None:
    answer = operator.post(
        reverse("admin:gpus_server_change", args=[NAME]), server_form(request_headers="no JSON")
    )
    assert '<details class="panel edit" open>' in answer.content.decode()


def test_the_page_of_a_new_server_is_the_form_alone(operator: Client) -> None:
    page = operator.get(reverse("admin:gpus_server_add")).content.decode()
    assert 'id="server_form"' in page
    assert 'id="dashboard"' not in page
    assert "<details class=" not in page


def test_slots_show_what_runs_and_have_their_controls(
    operator: Client, viewer: Client, fake_ports: FakePorts
) -> None:
    job = Job.objects.order_by("id")[0]
    fake_ports.leases.views = [view(f"{NAME}/0", "leased", job_id=job.id, held_seconds=125.0)]
    page = part(operator, "now")
    assert reverse("admin:jobs_job_change", args=[job.id]) in page
    assert "2 m" in page
    assert "zimg-server-1" not in page
    for control in ("switch_server", "set_slots"):
        assert f'hx-post="{reverse(f"dashboard:{control}", args=[NAME])}"' in page
    assert "hx-post" not in part(viewer, "now")


def test_a_quarantined_slot_can_be_freed_in_place(operator: Client) -> None:
    assert reverse("dashboard:free_slot", args=["ltx2-server-2", 1]) in part(operator, "now", "ltx2-server-2")


def test_the_last_twenty_attempts_and_failures_by_cause_are_listed(viewer: Client) -> None:
    Attempt.objects.all().delete()
    for number in range(25):
        attempt(started_at=timezone.now() - timedelta(minutes=2 + number))
    failed = attempt(state="failed", error_code="out_of_memory", error_message="no <b> memory")
    page = part(viewer, "runs")
    assert len(re.findall(r"<td>.*ago</a>", page)) == 20
    assert reverse("admin:jobs_attempt_change", args=[failed.id]) in page
    assert "1 × out_of_memory" in page
    assert "of the last 26 attempts" in page
    assert "no &lt;b&gt; memory" in page


def test_without_permission_for_jobs_no_attempt_is_shown(client: Client) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_server"))
    client.force_login(viewer)
    attempt(state="failed", error_code="out_of_memory")
    assert "out_of_memory" not in part(client, "now") + part(client, "charts")
    assert client.get(reverse("admin:gpus_server_runs", args=[NAME])).status_code == 403
    assert "server-runs" not in client.get(reverse("admin:gpus_server_change", args=[NAME])).content.decode()
    viewer.user_permissions.clear()
    for name in ("now", "charts"):
        assert client.get(reverse(f"admin:gpus_server_{name}", args=[NAME])).status_code == 403


def test_an_unknown_server_is_a_404(viewer: Client) -> None:
    for name in ("now", "charts", "runs"):
        assert viewer.get(reverse(f"admin:gpus_server_{name}", args=["gone"])).status_code == 404


def test_telemetry_is_drawn_with_loads_and_runs(viewer: Client, pinned: list[Measured]) -> None:
    assert "the worker has sent none" in part(viewer, "charts")
    gpu = {"utilisation": 91.0, "used_mb": 20480.0, "total_mb": 40960.0, "temperature": 61, "power": 250.0}
    pinned += [reading(10, warm=["flux", "zimg"], **gpu), reading(70, warm=["flux"], **gpu)]
    attempt()
    page = part(viewer, "charts")
    for shown in (
        "GPU utilisation",
        "GPU memory",
        "Temperature",
        "Power",
        "<title>zimg loaded</title>",
        "last 91 %",
    ):
        assert shown in page, shown
    assert 'class="band"' in page
    assert "style=" not in page


def test_a_day_is_drawn_on_request(
    viewer: Client, pinned: list[Measured], fake_ports: FakePorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = [Summary(500, 60, {"power": Spread(250.0, 100.0, 400.0)}, {"zimg": 2})]
    monkeypatch.setattr(type(fake_ports.leases), "telemetry_summaries", lambda *_: day)
    Attempt.objects.all().delete()
    attempt(started_at=timezone.now() - timedelta(hours=20), state="failed")
    page = part(viewer, "charts", window="24h")
    for shown in ("Last day", "last 250 W", "scale to 400 W", "zimg loaded 2 times", "1 failed", "(2 times)"):
        assert shown in page, shown
    assert 'href="?window=24h" aria-current="true"' in page
    for other in ("1h", "week", "%00"):
        assert "Last hour" in part(viewer, "charts", window=other)
    address = reverse("admin:gpus_server_change", args=[NAME])
    assert "charts/?window=24h" in viewer.get(f"{address}?window=24h").content.decode()
    assert "charts/?window=1h" in viewer.get(f"{address}?window=<script>").content.decode()


def test_a_day_with_too_many_runs_says_since_when_all_are_shown(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_runs, "MAX_DAY_RUNS", 48)
    Attempt.objects.all().delete()
    for number in range(20):
        attempt(started_at=timezone.now() - timedelta(minutes=60 + number))
    assert "some are missing" not in part(viewer, "charts", window="24h")
    monkeypatch.setattr(server_runs, "MAX_DAY_RUNS", 15)
    oldest = timezone.localtime(Attempt.objects.order_by("-started_at")[6].started_at)
    assert f"before {oldest:%H:%M} some are missing" in part(viewer, "charts", window="24h")


def test_without_telemetry_the_page_says_why(
    viewer: Client, pinned: list[Measured], fake_ports: FakePorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> list[Measured]:
        raise LeasingUnavailable

    assert "No telemetry in the last day" in part(viewer, "charts", window="24h")
    for method, window in (("telemetry", "1h"), ("telemetry_summaries", "24h")):
        monkeypatch.setattr(type(fake_ports.leases), method, away)
        assert "Redis does not answer" in part(viewer, "charts", window=window)
    assert "gpu_worker --gpu 0" in part(viewer, "charts", "zimg-server-1")


def test_a_part_needs_few_queries_and_no_more_for_more_attempts(viewer: Client) -> None:
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as asked:
            part(viewer, "now")
            part(viewer, "runs")
            part(viewer, "charts")
        counts.append(len(asked))
        for _ in range(10):
            attempt()
    assert counts[1] <= counts[0] <= 40


NOW = timezone.now()


def run(minutes_ago: float, lasted: float | None, **values: Any) -> Run:
    begin = NOW - timedelta(minutes=minutes_ago)
    end = None if lasted is None else begin + timedelta(minutes=lasted)
    known = {"id": "a", "job_id": "j", "number": 1, "slot": 0, "model": "flux", "state": "completed"}
    return Run(
        **{**known, "error_code": "", "message": "", "started_at": begin, "finished_at": end, **values}
    )


def lanes(runs: Sequence[Run], slots: int, window: Window = HOUR) -> str:
    return run_lanes(bars_of(runs, slots, NOW, window), slots, NOW, window)


def drawn_bars(drawn: str) -> list[tuple[str, ...]]:
    return re.findall(r'class="run run-(\w+)" x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawn)


def test_lanes_show_runs_of_the_last_hour_only() -> None:
    drawn = lanes(
        [run(10, None, state="sent", slot=1), run(30, 5, state="failed"), run(90, 50), run(90, 5)], 2
    )
    assert sorted(drawn_bars(drawn)) == [
        ("completed", "0.0", "2", "1200.0"),
        ("failed", "1800.0", "2", "300.0"),
        ("running", "3000.0", "18", "600.0"),
    ]
    assert 'aria-label="3 runs in the last hour, 1 failed"' in drawn


def test_runs_that_are_too_close_to_be_drawn_apart_share_a_bar() -> None:
    runs = [run(720 - number, 0.9) for number in range(60)]  # a day's step is two minutes
    short = [
        run(60 + number / 100, 0.005, state="failed" if number == 7 else "completed") for number in range(90)
    ]
    drawn = lanes(runs + short, 1, DAY)
    assert drawn_bars(drawn) == [("completed", "43200.0", "2", "3594.0"), ("failed", "82746.6", "2", "120.0")]
    assert "60 runs, 0 failed, flux" in drawn
    assert "90 runs, 1 failed, flux" in drawn
    assert 'aria-label="150 runs in the last day, 1 failed"' in drawn
    assert len(drawn_bars(lanes(runs, 1))) == 0
    assert len(drawn_bars(lanes([run(50 - number, 0.5) for number in range(50)], 1))) == 50


def test_models_loaded_before_the_first_reading_are_no_loads() -> None:
    samples = [reading(10, warm=["b"]), reading(20, warm=["a", "b"]), reading(30, warm=["a"])]
    points = points_of_readings(samples, HOUR)
    assert [(one.second, dict(one.loads)) for one in points if one.loads] == [(3580.0, {"b": 1})]


def test_a_curve_is_broken_where_readings_are_missing() -> None:
    samples = [reading(5, utilisation=50.0), reading(10, utilisation=50.0), reading(900, utilisation=100.0)]
    [curve] = curves(points_of_readings(samples, HOUR), [], HOUR)
    assert (curve.name, curve.latest, curve.top) == ("GPU utilisation", "50 %", "100 %")
    assert re.findall(r'"curve-p50" d="([^"]*)"', curve.drawing) == ["M2700 2.0M3590 50.0L3595 50.0"]
    assert "spread" not in curve.drawing


def test_a_day_is_drawn_by_means_with_the_lowest_and_highest_value() -> None:
    summaries = [
        Summary(100, 20, {"utilisation": Spread(50.0, 0.0, 100.0)}, {"flux": 3}),
        Summary(400, 60, {"utilisation": Spread(50.0, 50.0, 50.0)}, {}),
        Summary(9000, 60, {"utilisation": Spread(0.0, 0.0, 0.0)}, {}),
        Summary(86_500, 60, {"utilisation": Spread(0.0, 0.0, 0.0)}, {}),
    ]
    [curve] = curves(points_of_summaries(summaries, DAY), [], DAY)
    assert re.findall(r'"curve-p50" d="([^"]*)"', curve.drawing) == [
        "M50 98.0M77550 98.0M86150 50.0L86350 50.0"
    ]
    assert "M86350 98.0V2.0" in curve.drawing
    assert 'd="M86350.0 0V100"><title>flux loaded 3 times</title>' in curve.drawing
    assert "at most 100 % in the last day; models loaded: flux" in curve.drawing


def test_a_machine_without_a_gpu_shows_its_cpu() -> None:
    assert [curve.name for curve in curves(points_of_readings([reading(5)], HOUR), [], HOUR)] == ["CPU"]
    assert curves([], [], HOUR) == []
