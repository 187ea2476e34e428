"""The model field of an option is its only declaration, for the API's schema and checks and the admin
form."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from admin_ui.pages.models import ModelConfigPages
from admin_ui.parts.fleet_forms import ModelConfigForm
from foundation.http_api.openapi import json_schema
from gpus.api.bodies import ModelConfigBody, Register, schema_of
from gpus.models import ModelConfig
from gpus.models.model_config import Matches, MoreThan
from gpus.protocol import ModelSpec
from gpus.registry.model_fields import FIELDS, MODEL_FIELDS, OPTIONS, help_of
from gpus.runners.registry import BUILT_IN


@pytest.mark.parametrize(
    ("field", "schema"),
    [
        (models.BooleanField(), {"type": "boolean"}),
        (models.FloatField(validators=[MoreThan(0)]), {"type": "number", "exclusiveMinimum": 0}),
        (
            models.FloatField(null=True, validators=[MinValueValidator(-1), MaxValueValidator(9)]),
            {"type": ["number", "null"], "minimum": -1, "maximum": 9},
        ),
        (models.PositiveIntegerField(), {"type": "integer", "minimum": 0}),
        (models.PositiveIntegerField(validators=[MinValueValidator(1)]), {"type": "integer", "minimum": 1}),
        (
            models.CharField(max_length=5, null=True, validators=[Matches("^a*$")]),
            {"type": ["string", "null"], "minLength": 1, "maxLength": 5, "pattern": "^a*$"},
        ),
        (models.CharField(max_length=5, choices=[("a", "A"), ("b", "B")]), {"enum": ["a", "b"]}),
        (models.JSONField(null=True), {"type": ["object", "boolean", "null"]}),
    ],
)
def test_a_field_is_published_with_type_and_rules(field: Any, schema: dict[str, Any]) -> None:
    assert schema_of(field) == schema


def test_the_types_of_models_are_the_installed_runners() -> None:
    assert schema_of(OPTIONS["model_type"]) == {"enum": [runner.name for runner in BUILT_IN]}


def test_every_option_is_in_the_api_and_on_the_admins_page() -> None:
    for body in (Register, ModelConfigBody):
        properties = json_schema(body)["properties"]
        assert set(FIELDS) <= set(properties)
        assert [properties[name]["description"] for name in FIELDS] == [help_of(name) for name in FIELDS]
    shown = {
        name
        for _, section in ModelConfigPages.fieldsets
        for row in section["fields"]
        for name in ((row,) if isinstance(row, str) else row)
    }
    assert set(MODEL_FIELDS) <= shown
    form = ModelConfigForm()
    for name in set(MODEL_FIELDS) - {"model_type"}:
        assert form.fields[name].help_text == help_of(name)


def test_options_read_by_runners_are_declared() -> None:
    spec = ModelConfig(name="m", pool_id="p", health_path="/healthz", max_queued=5).spec
    assert spec == ModelSpec("m", "p", health_path="/healthz", max_queued=5)


def test_an_options_help_lists_the_runners_that_read_it() -> None:
    assert help_of("keep_alive_seconds").endswith("Read by ollama.")
    assert "Read by openai, ollama" in help_of("remote_model")
    assert "Read by" not in help_of("max_retries")


@pytest.mark.parametrize("text", ["a\n", "a\x00b"])
def test_a_pattern_is_that_of_the_whole_text(text: str) -> None:
    with pytest.raises(Exception, match="Without control"):
        Matches(r"^[^\x00-\x1f]*$", "Without control characters.")(text)
