"""Every list and page answers and shows its rows with a bounded number of queries."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.text import capfirst

import dispatcher_project.urls  # noqa: F401  registers the pages
from admin_ui.models import DeadLetter
from admin_ui.pages.navigation import side_bar
from admin_ui.parts.base_pages import COUNT_UP_TO, CappedPaginator
from gpus.models import FleetIndex, Pool
from gpus.protocol import FIRST_LAYOUT
from jobs.domain.event_types import EVENT_TYPES
from jobs.models import Callback, IdempotencyKey, Job, JobTag, PushedResult
from tests.admin_ui.rows import fill
from tests.support.accessibility import faults_of
from tests.support.page_walks import walked

OURS = [
    model
    for app in ("jobs", "gpus", "workflows", "schedules")
    for model in apps.get_app_config(app).get_models()
]
MAX_QUERIES = 14
MORE_ON_A_PAGE = 6
pytestmark = pytest.mark.django_db


def name(model: type[Model]) -> str:
    return f"{model._meta.app_label}_{model._meta.model_name}"


@pytest.mark.parametrize("model", OURS, ids=name)
def test_every_model_has_a_page(model: type[Model]) -> None:
    assert admin.site.is_registered(model)


def test_headings_are_correct_plurals(viewer: Client) -> None:
    for model in OURS:
        plural = str(model._meta.verbose_name_plural)
        assert not re.search(r"(ss|xs|[^aeiou]ys)$", plural), plural
    page = viewer.get(reverse("admin:gpus_process_changelist")).content.decode()
    assert "Processes" in page
    assert "Processs" not in page


def test_the_heading_of_a_list_begins_with_its_name_in_the_menu(rf: RequestFactory) -> None:
    request = rf.get("/admin/")
    request.user = User.objects.create_superuser("boss")
    headings = {
        reverse(f"admin:{name(model)}_changelist"): capfirst(str(model._meta.verbose_name_plural))
        for model in admin.site._registry
    }
    items = [item for group in side_bar(request) for item in group["items"] if item["link"] in headings]
    assert len(items) > 40
    assert {one["title"] for one in items if not headings[one["link"]].startswith(one["title"])} == set()


def test_a_fleet_without_a_row_has_the_first_index_layout(viewer: Client) -> None:
    list_of_layouts = reverse("admin:gpus_fleetindex_changelist")
    Pool.objects.create(name="video", fleet="east")
    page = viewer.get(list_of_layouts).content.decode()
    assert f"east: layout {FIRST_LAYOUT}, the first one" in page
    FleetIndex.objects.create(fleet="east")
    assert "east: layout" not in viewer.get(list_of_layouts).content.decode()


@pytest.mark.parametrize("user", [pytest.param("boss", marks=pytest.mark.database), "viewer"])
def test_every_list_and_page_answers_with_few_queries(
    user: str, request: pytest.FixtureRequest, subtests: pytest.Subtests
) -> None:
    fill(jobs=60)
    client: Client = request.getfixturevalue(user)
    for model in [*OURS, DeadLetter]:
        with subtests.test(name(model)):
            with CaptureQueriesContext(connection) as asked:
                answer = client.get(reverse(f"admin:{name(model)}_changelist"))
            assert answer.status_code == 200
            assert faults_of(answer.content.decode()) == []
            assert answer.context["cl"].result_list
            assert len(asked) <= MAX_QUERIES, [query["sql"] for query in asked]
            row = model._default_manager.order_by("pk").first()
            assert row is not None
            page = reverse(f"admin:{name(model)}_change", args=[row.pk])
            with CaptureQueriesContext(connection) as asked:
                answer = client.get(page, follow=model is DeadLetter)
            assert answer.status_code == 200
            assert faults_of(answer.content.decode()) == []
            most = MAX_QUERIES + MORE_ON_A_PAGE
            assert len(asked) <= most, [query["sql"] for query in asked]


def test_a_list_needs_no_more_queries_for_more_rows(boss: Client) -> None:
    fill(jobs=12)
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as asked:
            boss.get(reverse("admin:jobs_job_changelist"))
        counts.append(len(asked))
        Job.objects.bulk_create(
            Job(
                tenant_id=tenant, model="zimg", pool="zimg", payload={}, place_us=1, created_at=row.created_at
            )
            for row in Job.objects.all()[:30]
            for tenant in (row.tenant_id,)
        )
    assert counts[0] == counts[1]


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_a_list_does_not_read_payloads_and_results(boss: Client) -> None:
    for model, heavy in (
        (Job, '"payload"'),
        (Callback, '"body"'),
        (PushedResult, '"body"'),
        (IdempotencyKey, '"batch"'),
    ):
        with CaptureQueriesContext(connection) as asked:
            boss.get(reverse(f"admin:{name(model)}_changelist"))
        assert not [query["sql"] for query in asked if heavy in query["sql"]]


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_a_list_counts_a_bounded_number_of_rows() -> None:
    with CaptureQueriesContext(connection) as asked:
        assert CappedPaginator(Job.objects.order_by("-id"), 50).count == 300
    assert f"LIMIT {COUNT_UP_TO}" in asked[0]["sql"]


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_jobs_are_found_by_model_tenant_or_tag(boss: Client, subtests: pytest.Subtests) -> None:
    page = reverse("admin:jobs_job_changelist")
    for term, found in {"flux": 75, "acme": 100, "night": 50, "no such term": 0, "0" * 26: 0}.items():
        with subtests.test(term):
            assert len(walked(boss, f"{page}?q={term}")) == found


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_a_job_is_found_by_its_id_in_any_case(boss: Client) -> None:
    job = Job.objects.order_by("id")[100]
    answer = boss.get(reverse("admin:jobs_job_changelist"), {"q": job.id.lower()})
    assert [row.id for row in answer.context["cl"].result_list] == [job.id]


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_filters_select_rows(boss: Client, subtests: pytest.Subtests) -> None:
    for model, query, found in (
        ("jobs_job", "state__exact=failed", 50),
        ("jobs_job", "model=zimg&state__exact=queued", 25),
        ("jobs_job", "error_code=timeout", 50),
        ("jobs_attempt", "server=flux-server-1", 75),
        ("jobs_attempt", "state__exact=completed", 50),
        ("jobs_event", "type=queued", 300),
        ("jobs_callback", "state__exact=delivered", 0),
        ("gpus_quarantinedslot", "open=1", 1),
        ("gpus_quarantinedslot", "open=0", 0),
        ("gpus_server", "desired__exact=on", 8),
        ("admin_ui_deadletter", "error_code=poison", 0),
    ):
        with subtests.test(f"{model} {query}"):
            assert len(walked(boss, reverse(f"admin:{model}_changelist") + "?" + query)) == found


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_a_jobs_page_shows_its_history_and_escapes_clients_texts(boss: Client) -> None:
    job = Job.objects.filter(state="failed").order_by("id")[0]
    page = boss.get(reverse("admin:jobs_job_change", args=[job.id])).content.decode()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    for shown in ("-server-1/0", "queued", "msg_", "The run took longer"):
        assert shown in page


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_a_huge_result_is_shortened_with_a_note(boss: Client) -> None:
    job = Job.objects.filter(state="completed").order_by("id")[0]
    Job.objects.filter(id=job.id).update(result={"text": "x" * 3_000_000})
    page = boss.get(reverse("admin:jobs_job_change", args=[job.id])).content
    assert len(page) < 100_000
    assert b"2,999,952 more characters" in page
    raw = boss.get(reverse("admin:jobs_job_raw", args=[job.id, "result"]))
    assert raw["Content-Disposition"].startswith("attachment")
    assert raw.json() == {"text": "x" * 3_000_000}


@pytest.mark.usefixtures("filled")
def test_dismissed_jobs_are_not_dead_letters(boss: Client) -> None:
    first = Job.objects.filter(state="failed").order_by("id")[0]
    Job.objects.filter(id=first.id).update(dismissed_at=first.finished_at)
    ids = [row.id for row in walked(boss, reverse("admin:admin_ui_deadletter_changelist"))]
    assert len(ids) == 49
    assert first.id not in ids


@pytest.mark.database
def test_a_tag_search_does_not_show_a_job_twice(boss: Client) -> None:
    fill(jobs=6)
    job = Job.objects.order_by("id")[0]
    JobTag.objects.create(job=job, tag="zimg")  # tag and model are equal
    answer = boss.get(reverse("admin:jobs_job_changelist"), {"q": "zimg"})
    ids = [row.id for row in answer.context["cl"].result_list]
    assert len(ids) == len(set(ids)) == 2


@pytest.mark.database
def test_the_index_and_the_sidebar_show_only_permitted_pages(viewer: Client) -> None:
    page = viewer.get(reverse("admin:index")).content.decode()
    assert reverse("admin:jobs_job_changelist") in page
    assert reverse("admin:auth_user_changelist") not in page


@pytest.mark.database
def test_the_index_has_the_sidebars_names_and_every_page(boss: Client) -> None:
    answer = boss.get(reverse("admin:index"))
    listed = answer.context["app_list"]
    groups = {group["name"]: [model["name"] for model in group["models"]] for group in listed}
    assert list(groups) == ["Work", "Workflows", "Fleet", "Clients", "Records", "Access"]
    assert groups["Work"] == ["Jobs", "Dead letters", "Attempts", "Events", "Callbacks"]
    assert sum(len(models) for models in groups.values()) == len(admin.site._registry)


def test_pages_load_nothing_from_another_host(boss: Client) -> None:
    for page in ("admin:index", "admin:jobs_job_changelist"):
        text = boss.get(reverse(page)).content.decode()
        for attribute in ('src="http', 'href="http', "url(http", 'src="//', 'href="//'):
            assert attribute not in text


def test_without_a_session_a_page_redirects_to_the_login(client: Client) -> None:
    answer = client.get(reverse("admin:jobs_job_changelist"))
    assert answer.status_code == 302
    assert "login" in answer["Location"]


@pytest.mark.database
def test_a_login_without_next_leads_to_the_overview(client: Client, django_user_model: Any) -> None:
    django_user_model.objects.create_superuser("ada", password="secret")
    page = reverse("admin:login")
    answer = client.post(page, {"username": "ada", "password": "secret"})
    assert (answer.status_code, answer["Location"]) == (302, reverse("admin:index"))


def test_lists_of_records_explain_their_rows(viewer: Client) -> None:
    for name in ("jobs_attempt", "jobs_purgeledger", "gpus_quarantinedslot", "gpus_fleetindex"):
        answer = viewer.get(reverse(f"admin:{name}_changelist"))
        about = answer.context["cl"].model_admin.about
        assert about
        assert html.escape(about) in answer.content.decode()


@pytest.mark.database
def test_the_filter_of_events_offers_every_type_that_a_job_may_have(boss: Client) -> None:
    page = boss.get(reverse("admin:jobs_event_changelist")).content.decode()
    offered = set(re.findall(r'<option value="(\w+)"', page))
    assert offered == EVENT_TYPES


def test_a_filter_by_a_number_that_no_column_holds_is_no_error(boss: Client) -> None:
    """SQLite raises OverflowError for a reference to such a row, PostgreSQL finds none."""
    for address in ("jobs_job", "jobs_apikey", "workflows_workflow"):  # by key, and two with numbered pages
        page = reverse(f"admin:{address}_changelist")
        answer = boss.get(page, {"tenant": str(2**63)})
        is_refused = answer.status_code == 302 and answer["Location"] == f"{page}?e=1"
        assert is_refused or (answer.status_code == 200 and not answer.context["cl"].result_list)


@pytest.mark.database
def test_an_address_with_a_text_that_is_no_id_is_no_error(boss: Client) -> None:
    for model in admin.site._registry:
        answer = boss.get(reverse(f"admin:{name(model)}_change", args=["inf"]))
        assert answer.status_code in (302, 403, 404), name(model)


@pytest.mark.parametrize(
    "address", ["?q=a%00b", "?state=%00", "?%00=1", "?after=%00", "a%00b/change/", "a%00b/history/"]
)
def test_an_address_with_a_nul_is_refused(boss: Client, address: str) -> None:
    """PostgreSQL raises DataError for it, SQLite finds nothing."""
    answer = boss.get(reverse("admin:jobs_job_changelist") + address)
    assert answer.status_code == 400
    assert b"internal" not in answer.content
    assert boss.get(reverse("admin:jobs_job_changelist") + "?q=%2500").status_code == 200
