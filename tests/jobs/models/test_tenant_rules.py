"""A tenant's rules: the API, the admin form and `create_key` follow the columns of `jobs.models.Tenant`."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest
from django.contrib.admin.utils import flatten_fieldsets
from django.core.exceptions import ValidationError
from django.core.management import load_command_class

import dispatcher_client.answers
from admin_ui.pages.clients import TenantPages
from foundation.http_api.json_body import read_body
from foundation.http_api.problems import Problem
from jobs.api import answers, bodies
from jobs.limits.submit_limits import Limits
from jobs.models import Tenant
from jobs.models.tenant import rule_bounds
from jobs.operations.tenants import CHANGEABLE

NUMBERS = sorted(set(CHANGEABLE) - {"highest_band", "allowed_models"})
CREATE_KEY = load_command_class("dispatcher_project", "create_key").create_parser("manage.py", "create_key")


def test_each_column_that_an_operator_sets_is_a_rule() -> None:
    columns = {field.name for field in Tenant._meta.fields if field.editable and not field.auto_created}
    assert set(CHANGEABLE) == columns - {"name", "created_at"}


def test_the_api_names_each_rule() -> None:
    assert set(bodies.TenantChange.model_fields) == set(CHANGEABLE)
    assert set(get_type_hints(answers.Tenant)) == {"tenant", *CHANGEABLE}
    shown = {"max_running", *(field.name for field in fields(Limits))} - {"allowed_models"}
    assert set(get_type_hints(answers.MyLimits)) == shown
    assert {field.name for field in fields(dispatcher_client.answers.Limits)} == shown


def test_the_admin_form_and_the_command_have_each_rule() -> None:
    assert set(CHANGEABLE) <= set(flatten_fieldsets(TenantPages.fieldsets))
    given = CREATE_KEY.parse_args(["--tenant", "acme"])
    assert {*CHANGEABLE, "tenant_models"} - {"allowed_models"} <= vars(given).keys()


def api_takes(rule: str, value: float) -> bool:
    try:
        read_body(bodies.TenantChange, {rule: value})
    except Problem:
        return False
    return True


def column_takes(rule: str, value: float) -> bool:
    others = [field.name for field in Tenant._meta.fields if field.name != rule]
    try:
        Tenant(**{rule: value}).clean_fields(exclude=others)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("rule", NUMBERS)
def test_the_api_and_the_column_take_the_same_numbers(rule: str) -> None:
    least, most = rule_bounds(rule)
    values = [least - 1, least / 2 if least < 1 else 0, least, most, most + 1, most * 1000]
    taken = [column_takes(rule, value) for value in values]
    assert taken == [False, False, True, True, False, False]
    assert [api_takes(rule, value) for value in values] == taken


@pytest.mark.parametrize("rule", NUMBERS)
def test_the_document_of_the_api_has_the_columns_limits(rule: str) -> None:
    schema = bodies.TenantChange.model_json_schema()["properties"][rule]
    (number,) = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    assert (number["minimum"], number["maximum"]) == rule_bounds(rule)
