"""Prefetching of placements."""

from __future__ import annotations

import pytest
from django.db.models import prefetch_related_objects

from gpus.models import Placement, Server
from gpus.registry import queries
from tests.support.factories import make_model, make_server

pytestmark = pytest.mark.django_db


def placements(servers: list[Server]) -> list[list[tuple[str, str, str, str]]]:
    return [
        [(one.server_id, one.model_id, one.endpoint, one.model.pool_id) for one in server.placements.all()]
        for server in servers
    ]


def test_placements_are_read_for_all_servers_at_once_as_django_reads_them(
    django_assert_num_queries: pytest.FixtureRequest,
) -> None:
    first, second = make_model("zimg"), make_model("flux")
    both, one = make_server("both", model=first), make_server("one", model=second)
    make_server("unasked", model=first)
    Placement.objects.create(server=both, model=second, endpoint="http://127.0.0.1:9/flux")
    bare = Server.objects.create(name="bare", pool=first.pool, slots=1)
    servers = [both, one, bare]
    with django_assert_num_queries(1):  # type: ignore[operator]
        queries.read_placements(iter(servers))
        found = placements(servers)
    again = list(Server.objects.filter(pk__in=[one.pk for one in servers]))
    prefetch_related_objects(again, "placements__model")
    assert sorted(found) == sorted(placements(again))
    assert [len(one) for one in found] == [2, 1, 0]


def test_no_servers_cost_no_query(django_assert_num_queries: pytest.FixtureRequest) -> None:
    with django_assert_num_queries(0):  # type: ignore[operator]
        queries.read_placements([])
