from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from django.conf import LazySettings

from foundation.foreign_schema import CHEAP_STEPS, CheckTimedOut, Mismatch, NoFreeProcess, TooMuchMemory
from jobs.domain.errors import ModelSchemaUnusable, PayloadCheckBusy, PayloadCheckTooLong, PayloadInvalid
from jobs.submission.request import CheckBudget, check_payload, is_slow_check

CHOICE = {"items": {"enum": list(range(1000))}}


class Elsewhere:
    """Stands in for the processes; counts."""

    def __init__(self, says: Exception | Mismatch | None = None) -> None:
        self.says, self.asked = says, 0

    def mismatch(self, *_: Any) -> Mismatch | None:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def check(schema: Any, payload: Any, checks: CheckBudget | None = None, elsewhere: Any = None) -> None:
    check_payload(
        schema, payload, json.dumps(payload).encode(), checks or CheckBudget(), elsewhere or Elsewhere()
    )


def test_the_place_that_does_not_match_is_named() -> None:
    with pytest.raises(PayloadInvalid) as refused:
        check({"properties": {"a/b": {"items": {"type": "integer"}}}}, {"a/b": [1, "x"]})
    assert refused.value.pointer == "/payload/a~1b/1"
    assert str(refused.value) == 'The value is not of type "integer"'


def test_the_checks_of_a_request_share_one_budget() -> None:
    elsewhere = Elsewhere()
    checks, payload = CheckBudget(), [1] * 900
    check(CHOICE, payload, checks, elsewhere)
    assert elsewhere.asked == 0
    assert checks.steps_left < CHEAP_STEPS
    for _ in range(5):
        check(CHOICE, payload, checks, elsewhere)
    assert elsewhere.asked > 0, "what comes after it is checked where it can be stopped"


def test_a_check_that_took_too_long_is_refused_with_the_limit(
    settings: LazySettings,
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, schema_check_seconds=7.0, schema_checks=3)
    with pytest.raises(PayloadCheckTooLong, match="7 s"):
        check({"$ref": "#"}, 1, elsewhere=Elsewhere(CheckTimedOut()))
    with pytest.raises(PayloadCheckTooLong, match="536870912 bytes of memory"):
        check({"$ref": "#"}, 1, elsewhere=Elsewhere(TooMuchMemory()))
    with pytest.raises(PayloadCheckBusy, match="3 long checks") as busy:
        check({"$ref": "#"}, 1, elsewhere=Elsewhere(NoFreeProcess()))
    assert (busy.value.passes, busy.value.retry_after_seconds) == (True, 1.0)


def test_an_unusable_schema_refuses_every_payload() -> None:
    with pytest.raises(ModelSchemaUnusable) as refused:
        check({"pattern": "(?=a)"}, "anything")
    assert refused.value.passes
    assert not is_slow_check({"pattern": "(?=a)"}, b"1")


def test_a_schema_with_choices_or_references_is_a_slow_check() -> None:
    assert is_slow_check({"properties": {"a": {"$ref": "#"}}}, b"{}")
    assert is_slow_check(CHOICE, b"[" + b"1," * 900 + b"1]")
    assert not is_slow_check(CHOICE, b"[1]")
    assert not is_slow_check(None, b"[1]")
