"""Keyset pagination: every row once and in order, forwards and backwards, without a count."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from admin_ui.parts.keyset import cut
from jobs.models import Job
from tests.admin_ui.rows import NOW, fill
from tests.support.page_walks import walked

pytestmark = pytest.mark.django_db


@pytest.fixture
def jobs(db: None) -> None:
    fill(jobs=13)


@pytest.mark.database
@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("order", [("-id",), ("id",), ("-created_at", "-id"), ("state", "model", "-id")])
def test_pages_follow_each_other_both_ways(order: tuple[str, ...]) -> None:
    rows = Job.objects.order_by(*order)
    expected = list(rows.values_list("id", flat=True))
    forwards, key = [], ""
    while True:
        page = cut(rows, size=2, after=key)
        forwards.append([row.id for row in page.rows])
        if not page.after:
            break
        key = page.after
    assert [len(ids) for ids in forwards] == [2] * 6 + [1]
    assert [row_id for ids in forwards for row_id in ids] == expected
    backwards, key = [forwards[-1]], page.before
    while key:
        page = cut(rows, size=2, before=key)
        backwards.append([row.id for row in page.rows])
        key = page.before
    assert backwards[::-1] == forwards


@pytest.mark.database
@pytest.mark.usefixtures("jobs")
def test_rows_with_equal_first_fields_are_all_shown() -> None:
    Job.objects.filter(state="failed").update(finished_at=NOW)
    Job.objects.filter(state="cancelled").update(finished_at=NOW - timedelta(hours=1))
    rows = Job.objects.filter(state__in=["failed", "cancelled"]).order_by("-finished_at", "-id")
    seen, key = [], ""
    while True:
        page = cut(rows, size=1, after=key)
        seen += [row.id for row in page.rows]
        key = page.after
        if not key:
            break
    assert seen == list(rows.values_list("id", flat=True))
    assert len(seen) == 4


@pytest.mark.database
@pytest.mark.usefixtures("jobs")
def test_a_page_whose_rows_were_deleted_is_the_first_page() -> None:
    rows = Job.objects.order_by("-id")
    last = rows.last()
    assert last is not None
    assert cut(rows, size=5, after=last.id).rows == list(rows[:5])


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("jobs_event", "x"),
        ("jobs_event", "1,2"),
        ("admin_ui_deadletter", "yesterday,01"),
        ("admin_ui_deadletter", "01"),
    ],
)
def test_an_invalid_key_redirects_to_the_first_page(boss: Client, address: str, key: str) -> None:
    page = reverse(f"admin:{address}_changelist")
    for name in ("after", "before"):
        assert boss.get(page, {name: key})["Location"] == f"{page}?e=1"


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_pages_keep_the_lists_filter_and_order(boss: Client) -> None:
    page = reverse("admin:jobs_job_changelist")
    rows = walked(boss, f"{page}?model=zimg&o=4")
    expected = list(Job.objects.filter(model="zimg").order_by("id").values_list("id", flat=True))
    assert [row.id for row in rows] == expected
    assert len(expected) > 50


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_filtering_and_searching_start_at_the_first_page(boss: Client) -> None:
    first = boss.get(reverse("admin:jobs_job_changelist")).context["cl"]
    answer = boss.get(reverse("admin:jobs_job_changelist") + first.after_url)
    listed = answer.context["cl"]
    assert listed.before_url
    text = answer.content.decode()
    assert 'name="after"' not in text
    assert "after=" not in listed.get_query_string({"model": "zimg"})


@pytest.mark.database
@pytest.mark.usefixtures("filled")
def test_lists_run_no_count_query(boss: Client) -> None:
    for name in ("jobs_job", "admin_ui_deadletter", "jobs_attempt", "jobs_event", "jobs_callback"):
        with CaptureQueriesContext(connection) as asked:
            boss.get(reverse(f"admin:{name}_changelist"))
        assert not [query["sql"] for query in asked if "COUNT(" in query["sql"]]


@pytest.mark.usefixtures("filled")
def test_a_list_offers_no_select_all_across_pages(boss: Client) -> None:
    """The page of bulk actions, which counts first and works in steps, is for that."""
    text = boss.get(reverse("admin:jobs_job_changelist")).content.decode()
    assert 'class="action-counter"' in text
    assert "select the objects across all pages" not in text
