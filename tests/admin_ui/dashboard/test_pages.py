"""The dashboard's pages: permissions, live parts, contents and number of queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from gpus.leasing.values import PoolDepth
from gpus.models import Pause, Pool, Server
from gpus.registry.queries import RegistryCache
from jobs.models import Attempt, Job, Rollup, SweepRun, Tenant
from jobs.reports.fleet import SERVERS_PER_PAGE
from jobs.reports.rollups import counted
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts
from tests.support.fakes import WrongClocks
from tests.support.fleet_views import view

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("some")]
PAGES = ["/admin/", "/admin/fleet/", "/admin/queues/"]
PARTS = [
    "/admin/now/?part=now",
    "/admin/now/?part=charts&window=7d",
    "/admin/fleet/?part=servers",
    "/admin/queues/?part=queues",
    "/admin/queues/?part=charts&window=24h",
]
MAX_QUERIES = 32


@pytest.fixture
def some(fake_ports: FakePorts) -> None:
    fill(jobs=24)
    Pause.objects.all().delete()


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


@pytest.mark.parametrize("path", [*PAGES, *PARTS])
def test_a_viewer_sees_every_page_without_buttons(viewer: Client, operator: Client, path: str) -> None:
    assert "hx-post" not in text(viewer, path)
    shown = text(operator, path)
    if "fleet" in path or "part=queues" in path or path == "/admin/queues/":
        assert "hx-post" in shown


@pytest.mark.parametrize("path", PARTS)
def test_a_part_is_a_fragment(viewer: Client, path: str) -> None:
    assert "<html" not in text(viewer, path)


@pytest.mark.parametrize(
    "path", ["/admin/now/?part=x", "/admin/now/", "/admin/fleet/?part=x", "/admin/queues/?part=servers"]
)
def test_an_unknown_part_is_a_404(viewer: Client, path: str) -> None:
    assert viewer.get(path).status_code == 404


def test_staff_without_permissions_see_only_an_empty_start_page(client: Client) -> None:
    client.force_login(User.objects.create_user("viewer", is_staff=True))
    page = text(client, "/admin/")
    assert "zimg-server-1" not in page
    assert "Waiting" not in page
    for path in ("/admin/fleet/", "/admin/queues/"):
        assert client.get(path).status_code == 403


def test_without_permission_for_jobs_the_fleet_shows_no_job(client: Client, fake_ports: FakePorts) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_server"))
    client.force_login(viewer)
    job = Job.objects.filter(state="running").order_by("id")[0]
    slot: dict[str, Any] = {"server": "flux-server-1", "slot": 0, "model": "flux"}
    Attempt.objects.create(
        id=job.live_attempt, job=job, number=2, state="sent", started_at=timezone.now(), **slot
    )
    fake_ports.leases.views = [view("flux-server-1/0", "leased", job_id=job.id, attempt_id=job.live_attempt)]
    for path in ("/admin/fleet/?pool=flux", "/admin/fleet/?part=servers&pool=flux", "/admin/"):
        page = text(client, path)
        assert "busy" in page
        assert job.id not in page
        assert job.tenant.name not in page
    assert text(client, "/admin/now/?part=now")
    assert client.get("/admin/now/?part=charts").status_code == 403


def test_without_a_session_pages_redirect_to_the_login(client: Client) -> None:
    for path in [*PAGES, *PARTS, "/admin/pulse/"]:
        assert client.get(path)["Location"].startswith("/admin/login/")


@pytest.mark.parametrize("path", [*PAGES, *PARTS])
def test_a_page_needs_few_queries_and_no_more_for_more_jobs(
    boss: Client, path: str, fake_ports: FakePorts
) -> None:
    fake_ports.registry = RegistryCache(3600.0)
    text(boss, path)  # fills the caches
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as asked:
            text(boss, path)
        counts.append(len(asked))
        Job.objects.bulk_create(
            Job(
                tenant=Tenant.objects.all()[0],
                model="zimg",
                pool="zimg",
                payload={},
                place_us=n,
                created_at=timezone.now(),
            )
            for n in range(20)
        )
    assert counts[1] <= counts[0] <= MAX_QUERIES


def test_a_cell_shows_its_job_model_age_and_reason(viewer: Client, fake_ports: FakePorts) -> None:
    job = Job.objects.order_by("id")[0]
    fake_ports.leases.views = [
        view("flux-server-1/0", "leased", job_id=job.id, held_seconds=125.0),
        view("flux-server-1/1", resting=True, warm_model="flux"),
        view("flux-server-2/0"),
    ]
    page = text(viewer, "/admin/fleet/?pool=flux")
    for shown in (
        "busy",
        "2 m",
        f"…{job.id[-6:]}",
        "resting",
        "its server answered that it is busy",
        "warm: flux",
        "sick",
    ):
        assert shown in page
    assert reverse("admin:jobs_job_change", args=[job.id]) in page
    assert "zimg-server-1" not in page
    assert "trellis-server-1" in text(viewer, "/admin/fleet/?q=LLIS")


def test_servers_are_paged(viewer: Client) -> None:
    pool = Pool.objects.get(name="zimg")
    rows = (Server(name=f"more-server-{n:03}", pool=pool, slots=1) for n in range(2 * SERVERS_PER_PAGE))
    Server.objects.bulk_create(rows)
    assert "Servers 101–200 of 208" in text(viewer, "/admin/fleet/?p=1&q=server")
    assert 'href="?p=2&amp;q=server"' in text(viewer, "/admin/fleet/?p=1&q=server")
    assert 'href="?p=3' not in text(viewer, "/admin/fleet/?p=2")
    for nonsense in ("x", "-1", "9" * 30):
        assert "Servers 1–100 of 208" in text(viewer, f"/admin/fleet/?p={nonsense}")


def test_a_models_queue_is_shown(viewer: Client, fake_ports: FakePorts) -> None:
    now, tenant = timezone.now(), Tenant.objects.get(name="globex")
    Rollup.objects.create(
        span_seconds=60, at=now.replace(second=0, microsecond=0), model="zimg", tenant=tenant, completed=30,
        gpu_seconds=90.0, waits=counted(4.0), runs=counted(9.0),
    )  # fmt: skip
    fake_ports.leases.depths["zimg"] = PoolDepth("zimg", {"zimg": 7}, 0, {"leased": 2}, {"zimg": 2})
    page = text(viewer, "/admin/queues/?part=queues")
    for shown in ("9 <details", "2 held back", "21 s", "0.5", "globex", "100 %"):
        assert shown in page, shown


def test_problems_are_shown_at_the_top(operator: Client, viewer: Client, fake_ports: FakePorts) -> None:
    Pause.objects.create(kind="system", since=timezone.now(), actor="user:boss", reason="fire <b>")
    SweepRun.objects.create(name="tick", at=timezone.now() - timedelta(seconds=95))
    Server.objects.update(healthy=False)
    fake_ports.leases.away = True
    fake_ports.clock_watch = WrongClocks(7.0)
    page = text(viewer, "/admin/now/?part=now")
    for shown in (
        "The whole system is paused",
        "the clock of Redis is 7 s ahead",
        "fire &lt;b&gt;",
        "Redis does not answer",
        "No sweep for 1 m",
    ):
        assert shown in page
    assert "resume-system" not in page
    for path in ("/admin/fleet/?part=servers", "/admin/queues/?part=queues"):
        assert "The whole system is paused" in text(viewer, path)
    assert "resume-system" in text(operator, "/admin/now/?part=now")


def test_a_paused_model_and_tenant_can_be_resumed(operator: Client) -> None:
    tenant = Tenant.objects.get(name="acme")
    known: dict[str, Any] = {"since": timezone.now(), "actor": "user:boss"}
    Pause.objects.create(kind="model", name="zimg", **known)
    Pause.objects.create(kind="tenant", name=str(tenant.pk), **known)
    page = text(operator, "/admin/queues/?part=queues")
    assert 'id="resume-zimg"' in page
    assert f'id="resume-tenant-{tenant.pk}"' in page
    assert 'id="pause-zimg"' not in page


def test_under_wsgi_there_is_no_event_stream(viewer: Client) -> None:
    answer = viewer.get("/admin/pulse/")
    assert (answer.status_code, answer.content) == (204, b"")


def test_the_sidebar_links_to_the_dashboard_and_to_flower(viewer: Client) -> None:
    page = text(viewer, "/admin/")
    for path in ("/admin/fleet/", "/admin/queues/", "/admin/flower/"):
        assert f'href="{path}"' in page


def test_jobs_between_two_attempts_are_a_tile_with_their_most_frequent_error(operator: Client) -> None:
    Job.objects.all().delete()
    assert "mostly" not in text(operator, "/admin/now/?part=now")
    tenant = Tenant.objects.create(name="retrying")
    now = timezone.now()
    for number, code in enumerate(["run_failed", "server_lost", "run_failed"]):
        values: dict[str, Any] = {"tenant": tenant, "model": "flux", "pool": "flux", "payload": {}}
        Job.objects.create(
            **values, state="retrying", error_code=code, due_at=now, place_us=number, created_at=now
        )
    page = text(operator, "/admin/now/?part=now")
    assert 'state__exact=retrying">3</a> <small>mostly run_failed</small>' in page
    listed = text(operator, "/admin/jobs/job/?state__exact=retrying")
    assert listed.count("run_failed") >= 2


def test_the_overview_links_to_what_it_names(viewer: Client, fake_ports: FakePorts) -> None:
    job = Job.objects.order_by("id")[0]
    Job.objects.filter(state="failed").update(error_message="out of <b> memory")
    fake_ports.leases.views = [view("flux-server-1/0", "leased", job_id=job.id)]
    page = text(viewer, "/admin/now/?part=now")
    jobs = reverse("admin:jobs_job_changelist")
    for target in (
        reverse("admin:gpus_server_change", args=["flux-server-1"]),
        reverse("admin:jobs_job_change", args=[job.id]),
        reverse("admin:gpus_modelconfig_change", args=["zimg"]),
        reverse("admin:gpus_quarantinedslot_changelist") + "?open=1",
        *(f"{jobs}?state__exact={state}" for state in ("running", "queued", "failed")),
        *(f"{jobs}?model=zimg&amp;state__exact={state}" for state in ("running", "queued")),
    ):
        assert f'href="{target}"' in page, target
        assert viewer.get(target.replace("&amp;", "&")).status_code == 200, target
    assert "out of &lt;b&gt; memory" in page


def test_the_fleet_and_a_job_link_to_what_they_name(viewer: Client) -> None:
    page = text(viewer, "/admin/fleet/?part=servers")
    for target in (
        reverse("admin:gpus_pool_change", args=["zimg"]),
        reverse("admin:gpus_modelconfig_change", args=["zimg"]),
    ):
        assert f'href="{target}"' in page
    job = Job.objects.filter(state="failed").select_related("tenant")[0]
    page = text(viewer, reverse("admin:jobs_job_change", args=[job.id]))
    assert f'href="{reverse("admin:jobs_tenant_change", args=[job.tenant_id])}"' in page
    assert f'href="{reverse("admin:gpus_server_changelist")}?q={job.model}-server-1"' in page
