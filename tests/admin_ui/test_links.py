"""Lists link what they name, and every link of a row leads somewhere."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from gpus.models import Server
from tests.admin_ui.rows import fill

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_ports")]
LINKED = {
    "jobs_job": ("gpus_modelconfig", "jobs_tenant"),
    "admin_ui_deadletter": ("gpus_modelconfig", "jobs_tenant"),
    "jobs_attempt": ("jobs_job", "gpus_server", "gpus_modelconfig"),
    "gpus_placement": ("gpus_server", "gpus_modelconfig"),
    "gpus_pool": ("gpus_server", "gpus_modelconfig"),
    "gpus_server": ("gpus_modelconfig", "gpus_quarantinedslot"),
    "gpus_quarantinedslot": ("gpus_server",),
}
"""Lists, and the pages that their rows link."""


@pytest.mark.parametrize("name", LINKED)
def test_a_list_links_what_it_names(boss: Client, name: str) -> None:
    fill(jobs=12)
    page = boss.get(reverse(f"admin:{name}_changelist")).content.decode()
    table = page.split('id="result_list"')[1].split("</table>")[0]
    links = {link.replace("&amp;", "&") for link in re.findall(r'href="(/admin/[^"]+)"', table)}
    for linked in LINKED[name]:
        root = reverse(f"admin:{linked}_changelist")
        found = [link for link in links if link.startswith(root)]
        assert found, linked
        assert boss.get(found[0]).status_code == 200, found[0]


def test_a_pools_count_of_servers_leads_to_these_servers(boss: Client) -> None:
    fill(jobs=6)
    page = boss.get(reverse("admin:gpus_pool_changelist")).content.decode()
    (link,) = re.findall(rf'href="({reverse("admin:gpus_server_changelist")}\?[^"]*zimg)"', page)
    rows = boss.get(link).context["cl"].result_list
    assert {row.name for row in rows} == set(
        Server.objects.filter(pool="zimg").values_list("name", flat=True)
    )
