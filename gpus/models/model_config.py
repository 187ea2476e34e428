from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from foundation.names import NameField
from gpus.protocol import ModelSpec
from gpus.runners.registry import find_runner, no_such_runner


def validate_model_type(name: str) -> None:
    """Raises ValidationError with the names of the installed runners."""
    if find_runner(name) is None:
        raise ValidationError(no_such_runner(name), code="unknown_model_type")


class ModelConfig(models.Model):
    """A named thing that can be run, and how. Defaults are the founding document's."""

    name = NameField(primary_key=True)
    pool = models.ForeignKey("gpus.Pool", on_delete=models.PROTECT, related_name="models")
    model_type = models.CharField(
        max_length=64,
        default="sync",
        validators=[validate_model_type],
        help_text="The runner that speaks its servers' protocol.",
    )
    poll_endpoint_template = models.CharField(max_length=500, null=True, blank=True, default=None)
    id_field = models.CharField(max_length=100, null=True, blank=True, default=None)
    poll_interval = models.FloatField(default=2.0, help_text="Seconds between polls.")
    max_poll_time = models.FloatField(default=600.0, help_text="Seconds until a polled run times out.")
    max_retries = models.PositiveIntegerField(default=50, help_text="Retries before the dead letters.")
    max_run_seconds = models.FloatField(
        null=True, blank=True, default=None, help_text="Longest run of one attempt; empty: max_poll_time."
    )
    min_run_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.0), MaxValueValidator(31_536_000.0)],
        help_text="The shortest max_run_seconds that a job may set. Empty: DISPATCHER_MIN_RUN_SECONDS.",
    )
    at_most_once = models.BooleanField(
        default=False, help_text="Never run again after an attempt whose end is unknown."
    )
    payload_schema = models.JSONField(null=True, blank=True, default=None)
    cancel_endpoint_template = models.CharField(max_length=500, null=True, blank=True, default=None)
    max_response_bytes = models.PositiveIntegerField(default=16 * 1024 * 1024)
    max_queued = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(1)],
        help_text="Jobs that may wait for it, of all tenants; more are refused (429). Empty: no limit.",
    )
    max_queued_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001), MaxValueValidator(31_536_000.0)],
        help_text="Seconds that a job may wait for it in all; then it fails (max_queued_exceeded)."
        " Empty: DISPATCHER_MAX_QUEUED_SECONDS.",
    )
    remote_model = models.CharField(
        max_length=200,
        null=True,
        blank=True,
        default=None,
        help_text="LLM servers: what they call it; empty: its own name.",
    )
    keep_alive_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        help_text="Ollama: how long it stays loaded after a run; -1: for ever. Empty: as the server says.",
    )
    health_path = models.CharField(
        max_length=200,
        null=True,
        blank=True,
        default=None,
        help_text="Where its servers are asked for their health, as in /healthz; it must answer 200. "
        "Empty: /health, which a server may lack.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(
            name=self.name,
            pool=self.pool_id,
            model_type=self.model_type,
            poll_endpoint_template=self.poll_endpoint_template,
            id_field=self.id_field,
            poll_interval=self.poll_interval,
            max_poll_time=self.max_poll_time,
            max_retries=self.max_retries,
            max_run_seconds=self.max_run_seconds,
            min_run_seconds=self.min_run_seconds,
            at_most_once=self.at_most_once,
            payload_schema=self.payload_schema,
            cancel_endpoint_template=self.cancel_endpoint_template,
            max_response_bytes=self.max_response_bytes,
            max_queued=self.max_queued,
            max_queued_seconds=self.max_queued_seconds,
            remote_model=self.remote_model,
            keep_alive_seconds=self.keep_alive_seconds,
            health_path=self.health_path,
        )
