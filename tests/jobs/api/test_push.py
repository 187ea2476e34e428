from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from jobs.ids import new_id
from jobs.models import PushedResult
from jobs.services.push_tokens import push_token

from .conftest import World
from .test_bad_input import problem

BODY = {"status": "success", "result": {"url": "x"}}


def url() -> str:
    return f"/api/v1/tasks/callback/{new_id()}"


def test_a_push_with_its_token_is_stored_and_told(anonymous: APIClient, db: None, world: World) -> None:
    attempt = new_id()
    path = url()
    for _ in range(2):
        answer = anonymous.post(path, BODY, format="json", HTTP_X_CALLBACK_TOKEN=push_token(attempt))
        assert (answer.status_code, answer.json()) == (200, {"accepted": True})
    assert PushedResult.objects.get().body == BODY
    assert world.announced == [path.rsplit("/", 1)[1]] * 2


def test_the_token_may_come_as_a_bearer(anonymous: APIClient, db: None) -> None:
    header = f"Bearer {push_token(new_id())}"
    assert anonymous.post(url(), BODY, format="json", HTTP_AUTHORIZATION=header).status_code == 200


def test_the_token_may_stand_in_the_query(anonymous: APIClient, db: None) -> None:
    """Cog's webhooks set no headers."""
    answer = anonymous.post(f"{url()}?token={push_token(new_id())}", BODY, format="json")
    assert answer.status_code == 200
    problem(anonymous.post(f"{url()}?token=nonsense", BODY, format="json"), 401, "invalid_push_token")


@pytest.mark.parametrize("token", ["", "nonsense", "x.y", "é", "a" * 300, f"{'0' * 26}.{'0' * 40}"])
def test_a_push_without_its_token_is_turned_away(anonymous: APIClient, db: None, token: str) -> None:
    answer = anonymous.post(url(), BODY, format="json", HTTP_X_CALLBACK_TOKEN=token)
    problem(answer, 401, "invalid_push_token")
    assert not PushedResult.objects.exists()


def test_a_push_is_an_object(anonymous: APIClient, db: None) -> None:
    answer = anonymous.post(url(), [1], format="json", HTTP_X_CALLBACK_TOKEN=push_token(new_id()))
    problem(answer, 422, "validation_failed", "")
