"""The configuration of models, its versions, and the validators of its options.

`gpus.registry.model_fields` runs the validators when a value changes, for the API and the admin form. The API
publishes those that JSON Schema can express.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import BaseValidator, MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils.deconstruct import deconstructible

from artifacts.file_fields import checked_schema
from foundation.expressions import ExpressionRefused
from foundation.foreign_schema import SchemaRefused
from foundation.json_paths import pointer
from foundation.json_places import places
from foundation.names import NameField
from foundation.stored_schema import StoredSchema
from gpus.protocol import ModelSpec
from gpus.runners.registry import find_runner, missing_runner_message

MAX_SECONDS = 31_536_000
"""A year; longer is a mistake in the unit."""


class RuleBroken(ValidationError):
    """An option's value is invalid. api_code: stable API error code. text: message. pointer: JSON pointer
    into the value."""

    def __init__(self, code: str, message: str, *, pointer: str = "") -> None:
        super().__init__(message, code=code)
        self.api_code, self.text, self.pointer = code, message, pointer


@deconstructible
class MoreThan(BaseValidator):
    """The value is greater than the limit."""

    message = "More than %(limit_value)s."
    code = "more_than"

    def compare(self, a: Any, b: Any) -> bool:
        return bool(a <= b)


@deconstructible
class Matches(RegexValidator):
    """Validates that the whole text matches; Python's `$` would allow a trailing line end."""

    def __call__(self, value: Any) -> None:
        if not re.fullmatch(self.regex, str(value)):
            raise ValidationError(self.message, code=self.code)


def installed_runner(name: str) -> None:
    """Raise RuleBroken, with the names of the installed runners, for another name."""
    if find_runner(name) is None:
        raise RuleBroken("unknown_model_type", missing_runner_message(name))


def url_template(template: str) -> None:
    """Raise RuleBroken unless it is a path or an http(s) URL."""
    if not template.startswith(("/", "http://", "https://")):
        raise RuleBroken("invalid_template", "A template must begin with / or with http(s)://.")


def names_the_run(template: str) -> None:
    """Raise RuleBroken unless the template contains the run's id."""
    if "{id}" not in template:
        raise RuleBroken(
            "invalid_template", "poll_endpoint_template must contain {id}, such as /status/{id}."
        )


def own_path(path: str) -> None:
    """Raise RuleBroken unless it is a path without an origin."""
    is_path = path.startswith("/") and not path.startswith("//")
    if not is_path or any(character.isspace() or not character.isprintable() for character in path):
        raise RuleBroken(
            "invalid_health_path", "health_path must be a path on the server's own address, such as /healthz."
        )


def seconds_or_for_ever(seconds: float) -> None:
    """Raise RuleBroken unless it is 0 or more, or -1."""
    if seconds < 0 and seconds != -1:
        raise RuleBroken("invalid_keep_alive", "keep_alive_seconds must be 0 or more, or -1 for ever.")


def usable_schema(schema: Any) -> None:
    """Raise RuleBroken unless it is a JSON Schema that can be used."""
    try:
        checked_schema(schema)
    except SchemaRefused as refused:
        raise RuleBroken("invalid_schema", str(refused), pointer=pointer(refused.path)) from None


MAX_PLACES = 20
"""Paths to files in one model's results."""


def usable_places(paths: Any) -> None:
    """Raise RuleBroken unless it is a list of paths to files."""
    if not isinstance(paths, list) or not all(isinstance(one, str) for one in paths):
        raise RuleBroken(
            "invalid_output_files", 'output_files must be a list of paths, such as ["images[*]"].'
        )
    if len(paths) > MAX_PLACES:
        raise RuleBroken("invalid_output_files", f"output_files may have up to {MAX_PLACES} paths.")
    for at, path in enumerate(paths):
        try:
            places(path)
        except ExpressionRefused as refused:
            raise RuleBroken(
                "invalid_output_files", f"{path[:100]!r}: {refused}.", pointer=f"/{at}"
            ) from None


_SPAN = (MoreThan(0), MaxValueValidator(MAX_SECONDS))
_OF_SPEC = tuple(field.name for field in fields(ModelSpec) if field.name not in ("name", "pool"))
_SCHEMAS = ("payload_schema", "result_schema")


class ModelConfig(models.Model):
    """The configuration of a model that jobs can run.

    Each option is one field: its type, default, validators and help text are used by the API, the admin form
    and docs/reference/model_options.md (`manage.py write_docs`). Options with a field of the same name in
    `ModelSpec` are passed to runners.
    """

    name = NameField(primary_key=True)
    pool = models.ForeignKey("gpus.Pool", on_delete=models.PROTECT, related_name="models")
    model_type = models.CharField(
        max_length=64,
        default="sync",
        validators=[installed_runner],
        help_text="Protocol of the model's servers.",
    )
    poll_endpoint_template = models.CharField(
        max_length=500,
        null=True,
        blank=True,
        default=None,
        validators=[url_template, names_the_run],
        help_text="Poll URL: a path on the server's host, or a whole URL; {id} is the server's "
        "id of the run, as in /status/{id}. Required for async.",
    )
    id_field = models.CharField(
        max_length=100,
        null=True,
        blank=True,
        default=None,
        help_text="Field of the first answer that contains the server's id of the run. Unset: job_id, id, "
        "task_id or request_id.",
    )
    poll_interval = models.FloatField(default=2.0, validators=[*_SPAN], help_text="Seconds between polls.")
    max_poll_time = models.FloatField(
        default=600.0, validators=[*_SPAN], help_text="Seconds until a polled run times out."
    )
    max_retries = models.PositiveIntegerField(
        default=50,
        validators=[MaxValueValidator(100_000)],
        help_text="Retries before a job becomes a dead letter.",
    )
    max_run_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[*_SPAN],
        help_text="Longest run of one attempt. Unset: max_poll_time.",
    )
    min_run_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_SECONDS)],
        help_text="The shortest max_run_seconds that a job may set. Unset: DISPATCHER_MIN_RUN_SECONDS.",
    )
    at_most_once = models.BooleanField(
        default=False, help_text="Do not run a job again after an attempt with an unknown end."
    )
    payload_schema = models.JSONField(
        null=True,
        blank=True,
        default=None,
        validators=[usable_schema],
        help_text="A JSON Schema (2020-12) that every payload must satisfy. Unset: any payload.",
    )
    result_schema = models.JSONField(
        null=True,
        blank=True,
        default=None,
        validators=[usable_schema],
        help_text="A JSON Schema (2020-12) that every result must satisfy; its contentMediaType marks files. "
        "Unset: any result.",
    )
    output_files = models.JSONField(
        null=True,
        blank=True,
        default=None,
        validators=[usable_places],
        help_text="Paths to texts of the result that hold files, as base64, data: URI or URL; they become "
        "artifacts. Such as images[*], data[*].b64_json, video.url, or @ for the whole result.",
    )
    cancel_endpoint_template = models.CharField(
        max_length=500,
        null=True,
        blank=True,
        default=None,
        validators=[url_template],
        help_text="Cancel URL: a path on the server's host, or a whole URL; {job_id} is the job's "
        "id, {id} the server's id of the run. Unset: /cancel/{job_id}.",
    )
    max_response_bytes = models.PositiveIntegerField(
        default=16 * 1024 * 1024,
        validators=[MinValueValidator(1), MaxValueValidator(1024**3)],
        help_text="Maximum size of an answer, without the files of output_files; a longer one fails the run.",
    )
    inline_result_bytes = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0), MaxValueValidator(1024**3)],
        help_text="A result with more bytes of JSON becomes an artifact; 0: none does. "
        "Unset: DISPATCHER_INLINE_RESULT_BYTES.",
    )
    max_queued = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(1), MaxValueValidator(2_000_000_000)],
        help_text="Maximum of waiting jobs of all tenants; further submits are refused (429). "
        "Unset: no limit.",
    )
    max_queued_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001), MaxValueValidator(MAX_SECONDS)],
        help_text="Longest total wait of a job in seconds; then it fails (max_queued_exceeded). Unset: "
        "DISPATCHER_MAX_QUEUED_SECONDS.",
    )
    remote_model = models.CharField(
        max_length=200,
        null=True,
        blank=True,
        default=None,
        validators=[Matches(r"^[^\x00-\x1f]*$", "Without control characters.")],
        help_text="Name of the model on its servers. Unset: the same name.",
    )
    keep_alive_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[seconds_or_for_ever, MinValueValidator(-1), MaxValueValidator(MAX_SECONDS)],
        help_text="Seconds for which the model stays loaded after a run; -1: always. "
        "Unset: the payload's or server's value.",
    )
    health_path = models.CharField(
        max_length=200,
        null=True,
        blank=True,
        default=None,
        validators=[own_path],
        help_text="Path of the servers' health check, such as /healthz; it must answer 200. "
        "Unset: /health, which is optional.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> ModelSpec:
        options = {name: getattr(self, name) for name in _OF_SPEC}
        for name in _SCHEMAS:
            if options[name] is not None:
                options[name] = StoredSchema(options[name])
        return ModelSpec(self.name, self.pool_id, **options)


class ConfigVersion(models.Model):
    """A model's fields after a change, as history and for reverts."""

    model = models.ForeignKey("gpus.ModelConfig", on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    fields = models.JSONField()

    class Meta:
        ordering = ["-number"]
        verbose_name = "config version"
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="one_version_per_number")]

    def __str__(self) -> str:
        return f"{self.model_id} v{self.number}"
