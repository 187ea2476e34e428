"""Versions of models, the audit log, and test callbacks."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from admin_ui.pages import deliveries
from gpus.models import AuditEntry, ConfigVersion, ModelConfig, Server
from gpus.registry.audit import record
from gpus.registry.registry import configure_model
from jobs.callbacks.sending import Outcome
from jobs.models import Attempt, Callback, Job, ReceiverCircuit, Rollup, TagUsage, Tenant
from jobs.reports.rollups import BEGINNING, BOUNDS_SECONDS, EVER, HOUR
from tests.admin_ui.rows import NOW, fill
from tests.support.admin_ports import FakePorts

pytestmark = pytest.mark.django_db


@pytest.fixture
def versions(fake_ports: FakePorts) -> list[ConfigVersion]:
    """Three versions of zimg, with 50, 7 and 9 retries."""
    leases: Any = lambda fleet: fake_ports.leases  # noqa: E731
    for retries in (50, 7, 9):
        configure_model("zimg", {"max_retries": retries}, by="user:boss", leases=leases, replace=True)
    return list(ConfigVersion.objects.order_by("number"))


def test_a_models_page_shows_the_changes_of_each_version(
    viewer: Client, versions: list[ConfigVersion]
) -> None:
    assert (
        reverse("admin:gpus_configversion_of", args=["zimg"])
        in viewer.get(reverse("admin:gpus_modelconfig_change", args=["zimg"])).content.decode()
    )
    page = viewer.get(reverse("admin:gpus_configversion_of", args=["zimg"])).content.decode()
    assert "<b>max_retries</b> <del>7</del> → <ins>9</ins>" in page
    assert "<b>max_retries</b> <del>50</del> → <ins>7</ins>" in page
    assert "created" in page
    assert "Revert" not in page


def test_reverting_a_model_adds_a_version(
    operator: Client, viewer: Client, versions: list[ConfigVersion]
) -> None:
    page = operator.get(reverse("admin:gpus_configversion_of", args=["zimg"])).content.decode()
    assert "Revert to 2" in page
    assert "Revert to 3" not in page  # the current version
    button = reverse("admin:gpus_configversion_revert", args=[versions[1].pk])
    assert viewer.post(button, {"_form_submitted": "on"}).status_code == 403
    assert operator.get(button).status_code == 200
    assert ModelConfig.objects.get(name="zimg").max_retries == 9
    answer = operator.post(button, {"_form_submitted": "on"})
    assert answer["Location"] == reverse("admin:gpus_modelconfig_change", args=["zimg"])
    assert ModelConfig.objects.get(name="zimg").max_retries == 7
    assert ConfigVersion.objects.count() == 4
    assert AuditEntry.objects.filter(
        actor="user:operators", action="revert_model", target="model:zimg"
    ).exists()


def test_a_version_shows_the_changes_of_a_revert(operator: Client, versions: list[ConfigVersion]) -> None:
    page = operator.get(reverse("admin:gpus_configversion_change", args=[versions[0].pk])).content.decode()
    assert "<del>9</del> → <ins>50</ins>" in page
    latest = operator.get(reverse("admin:gpus_configversion_change", args=[versions[2].pk])).content.decode()
    assert "Revert to this version" in page
    assert "Revert to this version" not in latest


@pytest.fixture
def entries(db: None) -> None:
    for actor, action, target in (
        ("user:ann", "cancel_job", "job:01J"),
        ("key:abcd", "switch_server", "server:flux-1"),
        ("cli:root", "pause_model", "model:flux"),
        ("user:bob", "retry_jobs", "jobs:filter"),
    ):
        AuditEntry.objects.create(at=NOW, actor=actor, action=action, target=target, detail={"before": [1]})


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"by": "user"}, ["user:bob", "user:ann"]),
        ({"on": "server"}, ["key:abcd"]),
        ({"on": "job"}, ["user:ann"]),
        ({"q": "ann"}, ["user:ann"]),
        ({"q": "flux-1"}, ["key:abcd"]),
        ({"q": "model:flux"}, ["cli:root"]),
        ({"q": "unknown"}, []),
    ],
)
def test_audit_entries_are_found_by_actor_and_by_target(
    viewer: Client, query: dict[str, str], found: list[str]
) -> None:
    answer = viewer.get(reverse("admin:gpus_auditentry_changelist"), query)
    assert [row.actor for row in answer.context["cl"].result_list] == found


@pytest.mark.usefixtures("entries")
def test_the_audit_links_to_its_targets_and_is_read_only(boss: Client) -> None:
    page = boss.get(reverse("admin:gpus_auditentry_changelist")).content.decode()
    assert f'href="{reverse("admin:gpus_server_change", args=["flux-1"])}"' in page
    assert "before: [1]" in page
    row = AuditEntry.objects.order_by("id")[0]
    assert boss.get(reverse("admin:gpus_auditentry_add")).status_code == 403
    assert boss.get(reverse("admin:gpus_auditentry_delete", args=[row.pk])).status_code == 403
    assert (
        boss.post(reverse("admin:gpus_auditentry_change", args=[row.pk]), {"actor": "x"}).status_code == 403
    )


def test_a_test_callback_is_sent_and_its_outcome_shown(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(jobs=6)
    sent = []

    def send(tenant: Tenant, url: str, **how: Any) -> Outcome:
        sent.append((tenant.name, url, how["by"]))
        return Outcome(None, "OSError: no route", 12)

    monkeypatch.setattr(deliveries, "send_sample", send)
    page = reverse("admin:jobs_callback_sample")
    tenant = Tenant.objects.get(name="acme")
    assert Job.objects.filter(tenant=tenant).exists()
    link = operator.get(reverse("admin:jobs_tenant_send_test", args=[tenant.pk]))["Location"]
    assert link == f"{page}?tenant=acme"
    assert 'value="https://hooks.example.com/gpu"' in operator.get(link).content.decode()
    assert sent == []
    answer = operator.post(page, {"tenant": "acme", "url": "https://x.example/"}).content.decode()
    assert sent == [("acme", "https://x.example/", "user:operators")]
    assert "OSError: no route" in answer


def test_a_test_callback_to_a_forbidden_address_is_refused(
    operator: Client, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tenant.objects.create(name="acme")
    page = reverse("admin:jobs_callback_sample")
    form = {"tenant": "acme", "url": "http://127.0.0.1/"}
    assert "must not call" in operator.post(page, form).content.decode()
    assert "must begin with" in operator.post(page, form | {"url": "ftp://x.example/"}).content.decode()
    assert viewer.get(page).status_code == viewer.post(page, form).status_code == 403
    assert not AuditEntry.objects.filter(action="send_sample_callback").exists()


def test_links_work_for_names_that_look_quoted(operator: Client, fake_ports: FakePorts) -> None:
    """Django's admin reads _22 in a URL as a quotation mark."""
    leases: Any = lambda fleet: fake_ports.leases  # noqa: E731
    for retries in (50, 7):
        configure_model("gpu_22", {"max_retries": retries}, by="user:boss", leases=leases, replace=True)
    model = ModelConfig.objects.get(name="gpu_22")
    Server.objects.create(name="box_3A", pool=model.pool)
    record("user:boss", "switch_server", "server:box_3A")
    version = ConfigVersion.objects.get(model=model, number=1)
    button = reverse("admin:gpus_configversion_revert", args=[version.pk])
    pages = [operator.post(button, {"_form_submitted": "on"})["Location"]]
    for path, name in (
        ("/admin/fleet/", "box_3A"),
        ("/admin/queues/", "gpu_22"),
        (reverse("admin:gpus_auditentry_changelist"), "server:box_3A"),
        (reverse("admin:gpus_auditentry_changelist"), "model:gpu_22"),
    ):
        link = re.search(rf'<a href="([^"]*)">{name}</a>', operator.get(path).content.decode())
        assert link, path
        pages.append(link[1])
    assert [operator.get(page).status_code for page in pages] == [200] * 5


def test_the_callbacks_page_summarises_deliveries(viewer: Client) -> None:
    fill(jobs=14)
    circuit = ReceiverCircuit.objects.get()
    due = {"next_at": NOW - timedelta(days=9999), "receiver": circuit.receiver, "tenant": circuit.tenant}
    Callback.objects.update(state="pending", **due)
    page = viewer.get(reverse("admin:jobs_callback_changelist")).content.decode()
    assert reverse("admin:jobs_callback_deliveries") in page
    summary = viewer.get(reverse("admin:jobs_callback_deliveries")).content.decode()
    assert f"0 in flight · 0 due · {Callback.objects.count()} held back by" in summary
    assert ">1 open circuit<" in summary
    receivers = viewer.get(reverse("admin:jobs_receivercircuit_changelist")).content.decode()
    assert circuit.receiver in receivers


def test_attempts_are_listed_as_running_whether_sent_or_polled(operator: Client) -> None:
    fill(jobs=12)
    jobs = {"sent": "running", "waiting": "retrying", "lost": "queued"}
    for number, state in enumerate(("sent", "waiting", "lost"), start=90):
        finished_at = NOW if state == "lost" else None
        job = Job.objects.filter(state=jobs[state])[0]
        Attempt.objects.create(
            id=f"{number:026d}", job=job, number=number, state=state, server="gpu-9", slot=number,
            model="zimg", started_at=NOW, finished_at=finished_at,
        )  # fmt: skip
    address = reverse("admin:jobs_attempt_changelist")

    def listed(state: str) -> list[int]:
        page = operator.get(address, {"state__exact": state, "server": "gpu-9"}).content.decode()
        return [number for number in (90, 91, 92) if f"{number:026d}" in page]

    assert listed("running") == [90, 91]
    assert listed("lost") == [92]


def test_a_rollup_names_its_span_and_its_times(viewer: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    waits = [0, 3, *[0] * (len(BOUNDS_SECONDS) - 2), 1]
    ever = Rollup.objects.create(span_seconds=EVER, at=BEGINNING, model="zimg", tenant=tenant, waits=waits)
    Rollup.objects.create(span_seconds=HOUR, at=BEGINNING, model="zimg", tenant=tenant)
    listed = viewer.get("/admin/jobs/rollup/").content.decode()
    assert "the first job" in listed
    assert "all time" in listed
    assert "1:00:00" in listed
    page = viewer.get(f"/admin/jobs/rollup/{ever.pk}/change/").content.decode()
    assert "<div>up to 100 ms: 3</div><div>longer: 1</div>" in page
    assert "<div>none: 0</div>" in page, "no run times"


def test_the_gpu_seconds_of_a_tag_are_rounded(viewer: Client) -> None:
    tenant = Tenant.objects.create(name="acme")
    row = TagUsage.objects.create(
        day=BEGINNING, tenant=tenant, tag="night", completed=20, gpu_seconds=4.155137294999918
    )
    page = viewer.get(f"/admin/jobs/tagusage/{row.pk}/change/").content.decode()
    assert "GPU-seconds" in page
    assert "4.2" in page
    assert "4.155" not in page
