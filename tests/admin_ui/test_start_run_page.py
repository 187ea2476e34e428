"""Starting a run on a page: fields from the schema of its inputs, options, one run for two clicks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpus.models import AuditEntry
from tests.support.admin_ports import FakePorts
from tests.support.factories import make_tenant
from workflows.models import Run, Version
from workflows.operations.definitions import put_definition

pytestmark = [pytest.mark.django_db]
INPUTS = {
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": {"type": "string", "title": "Title <b>of it</b>", "minLength": 2},
        "frames": {"type": "integer", "maximum": 9, "default": 3},
        "style": {"enum": ["oil", "ink"]},
    },
}
NODES = {"wait": {"timer": {"seconds": 3600}}}


@pytest.fixture
def film(fake_ports: FakePorts) -> Version:
    spec = {"inputs": INPUTS, "nodes": NODES}
    return put_definition(make_tenant().pk, "film", spec, ports=fake_ports.ports()).version


def address(version: Version) -> str:
    return reverse("admin:workflows_version_start_one", args=[version.pk])


def filled(client: Client, version: Version, **values: str) -> dict[str, str]:
    """Return the form as a browser would send it, with values by the names of inputs and options."""
    version.refresh_from_db()  # PostgreSQL keeps no order of keys
    places = {name: f"field-{place}" for place, name in enumerate(version.spec["inputs"]["properties"])}
    page = client.get(address(version)).content.decode()
    key = re.findall(r'name="key" value="([^"]+)"', page)[0]
    return {
        "priority": "5",
        "key": key,
        places["frames"]: "3",
        **{places.get(name, name): text for name, text in values.items()},
    }


def test_a_run_is_started_with_inputs_and_options_and_audited(boss: Client, film: Version) -> None:
    workflow = reverse("admin:workflows_workflow_change", args=[film.workflow_id])
    assert "Start a run" in boss.get(workflow).content.decode()
    answer = boss.get(reverse("admin:workflows_workflow_start_newest", args=[film.workflow_id]), follow=True)
    assert "Title &lt;b&gt;of it&lt;/b&gt;" in answer.content.decode()
    form = filled(boss, film, title="A fox", priority="2", deadline_seconds="60.5", tags="night, fox")
    answer = boss.post(address(film), form, follow=True)
    run = Run.objects.get()
    assert "A run of film v1 has started." in answer.content.decode()
    assert answer.redirect_chain[-1][0] == reverse("admin:workflows_run_change", args=[run.id])
    assert run.inputs == {"title": "A fox", "frames": 3}
    assert (run.priority, run.tags) == (2, ["night", "fox"])
    assert run.deadline_at is not None
    entry = AuditEntry.objects.get(action="start_run")
    assert (entry.actor, entry.target) == ("user:boss", f"run:{run.id}")


def test_a_second_click_starts_no_second_run(boss: Client, film: Version) -> None:
    form = filled(boss, film, title="A fox")
    boss.post(address(film), form)
    answer = boss.post(address(film), form, follow=True)
    assert "had started the run already" in answer.content.decode()
    assert Run.objects.count() == 1


def test_a_form_gone_back_to_and_changed_starts_another_run_when_it_is_sent_again(
    boss: Client, film: Version
) -> None:
    form = filled(boss, film, title="A fox")
    boss.post(address(film), form)
    changed = {name: "A wolf" if text == "A fox" else text for name, text in form.items()}
    page = boss.post(address(film), changed).content.decode()
    assert "was sent before, with other values" in page
    key = re.findall(r'name="key" value="([^"]+)"', page)[0]
    assert key != form["key"]
    boss.post(address(film), {**changed, "key": key})
    assert sorted(run.inputs["title"] for run in Run.objects.all()) == ["A fox", "A wolf"]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"title": "A fox", "frames": "x"}, "not a whole number"),
        ({"title": "A fox", "frames": "10"}, "greater than the maximum"),
        ({"title": "F"}, "shorter than"),
        ({"title": "A fox", "style": '"clay"'}, "is not one of"),
        ({"title": "A fox", "priority": "10"}, "less than or equal to 9"),
        ({"title": "A fox", "deadline_seconds": "-1"}, "greater than 0"),
        ({"title": "A fox", "tags": "x" * 65}, "at most 64"),
        ({"title": "A fox", "callback_url": "javascript:alert(1)"}, "http"),
        ({"title": "A\0fox"}, "NUL"),
    ],
)
def test_wrong_values_are_shown_and_the_typed_text_stays(
    boss: Client, film: Version, values: dict[str, str], error: str
) -> None:
    form = filled(boss, film, **values)
    page = boss.post(address(film), form).content.decode()
    assert not Run.objects.exists()
    shown = page.lower()
    assert error.lower() in shown, re.findall(r'class="(?:field-error|error-box)[^>]*>([^<]+)', page)
    assert 'aria-invalid="true"' in page
    assert 'value="A fox"' in page or values["title"] != "A fox"


def test_the_version_of_the_form_is_started_although_there_is_a_newer_one(
    boss: Client, film: Version, fake_ports: FakePorts
) -> None:
    form = filled(boss, film, title="A fox")
    tenant = film.workflow.tenant_id
    put_definition(tenant, "film", {"nodes": NODES}, ports=fake_ports.ports())
    assert "not the newest, which is 2" in boss.get(address(film)).content.decode()
    boss.post(address(film), form)
    assert Run.objects.get().version_id == film.pk


def test_inputs_without_a_schema_are_json(boss: Client, fake_ports: FakePorts) -> None:
    stored = put_definition(make_tenant().pk, "any", {"nodes": NODES}, ports=fake_ports.ports())
    for text, inputs in (("", None), ('{"a": [1]}', {"a": [1]})):
        sent = {"priority": "5", "key": f"k{len(text)}", "field-0": text}
        boss.post(address(stored.version), sent)
        assert Run.objects.latest("id").inputs == inputs
    page = boss.post(address(stored.version), {"priority": "5", "key": "k", "field-0": "{"}).content.decode()
    assert "this is not JSON" in page
    assert Run.objects.count() == 2


def test_errors_of_tenant_limits_and_inputs_are_shown(boss: Client, film: Version, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_input_bytes=100)
    page = boss.post(address(film), filled(boss, film, title="x" * 200)).content.decode()
    assert "DISPATCHER_WORKFLOW_INPUT_BYTES" in page
    assert not Run.objects.exists()


def test_starting_takes_a_permission(viewer: Client, film: Version) -> None:
    assert viewer.get(address(film)).status_code == 403
    assert viewer.post(address(film), {"priority": "5", "key": "k"}).status_code == 403
    for page in ("workflow", "version"):
        pk = film.pk if page == "version" else film.workflow_id
        shown = viewer.get(reverse(f"admin:workflows_{page}_change", args=[pk])).content.decode()
        assert "Start a run" not in shown
    newest = reverse("admin:workflows_workflow_start_newest", args=[film.workflow_id])
    assert viewer.get(newest).status_code == 403
    assert not Run.objects.exists()


def test_there_is_no_form_of_a_version_that_does_not_exist(boss: Client) -> None:
    for pk in ("0", "nonsense"):
        assert boss.get(reverse("admin:workflows_version_start_one", args=[pk])).status_code == 404
        assert boss.get(reverse("admin:workflows_workflow_start_newest", args=[pk])).status_code == 404
