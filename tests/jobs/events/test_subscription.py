from __future__ import annotations

import pytest

from jobs.events.hub import subscriber_client


def test_subscriptions_to_a_cluster_try_one_node_after_the_other() -> None:
    url = "redis+cluster://:s3cret@a:7000,b"
    found = [subscriber_client(url, turn).connection_pool.connection_kwargs for turn in range(3)]
    assert [(kwargs["host"], kwargs["port"]) for kwargs in found] == [("a", 7000), ("b", 6379), ("a", 7000)]
    assert found[0]["password"] == "s3cret"


def test_a_sentinel_is_asked_for_its_master() -> None:
    client = subscriber_client("redis+sentinel://a:26379,b:26379/mymaster/0")
    assert client.connection_pool.service_name == "mymaster"


def test_another_scheme_is_refused() -> None:
    with pytest.raises(ValueError):
        subscriber_client("http://a")
