"""Celery's settings, each of which has a name that Celery defines."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from celery.app import defaults
from django.core.exceptions import ImproperlyConfigured

from dispatcher_project.celery import app
from dispatcher_project.settings.celery import broker_url, celery_settings
from dispatcher_project.supervisor.data_folder import ROOT


def test_every_setting_is_known_to_celery() -> None:
    ours = {"hint_transport_options"}
    known = {name for name, _ in defaults.flatten(defaults.NAMESPACES)}
    assert set(celery_settings("redis://somewhere")) - ours <= known


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("task_reject_on_worker_lost", False),  # on: a poison message runs for ever
        ("task_acks_on_failure_or_timeout", True),  # off: the same
        ("task_acks_late", True),
        ("worker_prefetch_multiplier", 1),
        ("result_backend", None),  # a Redis backend loses acks when Redis is down
        ("broker_connection_max_retries", None),  # the default gives up after 46 minutes
        ("broker_channel_error_retry", True),  # a full Redis ends the worker
        ("worker_cancel_long_running_tasks_on_connection_loss", False),
        ("worker_pool", "threads"),
        ("worker_hijack_root_logger", False),
    ],
)
def test_measured_settings_are_unchanged(setting: str, value: Any) -> None:
    assert app.conf[setting] == value


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("unix:///tmp/a.sock?db=3", "redis+socket:///tmp/a.sock?virtual_host=3"),
        ("unix:///tmp/a.sock", "redis+socket:///tmp/a.sock?virtual_host=0"),
        ("unix://:secret@/tmp/a.sock", "redis+socket://:secret@/tmp/a.sock?virtual_host=0"),
        ("redis://h:1/2", "redis://h:1/2"),
        ("amqp://u:p@h//", "amqp://u:p@h//"),
    ],
)
def test_urls_are_converted_to_kombus_notation(given: str, spelled: str) -> None:
    assert broker_url(given) == spelled


def test_an_unknown_broker_is_refused_with_the_allowed_schemes() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"redis://.*kafka://"):
        broker_url("kafka://somewhere")


def test_rabbitmq_gets_no_redis_options() -> None:
    assert "health_check_interval" not in celery_settings("amqp://somewhere")["broker_transport_options"]


def test_sentinel_gets_its_masters_name() -> None:
    options = celery_settings("sentinel://somewhere:26379", sentinel_master="gpuq")["hint_transport_options"]
    assert options["master_name"] == "gpuq"


def test_a_process_that_needs_no_celery_does_not_load_it() -> None:
    check = "import sys, dispatcher_project.settings.test; sys.exit('celery' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0
