"""Celery's configuration. The measurements behind it are in docs/adr; unusual lines have their reason beside
them."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ImproperlyConfigured

PUBLISH_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
"""With time-outs of 1 s, publishing ends within 3 s."""

_REDIS_OPTIONS = {
    # these together detect a silent network partition; without any one of them it blocks until its end
    "socket_timeout": 5.0,
    "socket_connect_timeout": 2.0,
    "health_check_interval": 5,
    "socket_keepalive": True,
    "retry_on_timeout": False,
}
_PUBLISH_TIMEOUT_SECONDS = 1.0


def unreadable_address(name: str) -> ImproperlyConfigured:
    """Return the error of a URL whose host and port can't be read; it shows no part of a password."""
    return ImproperlyConfigured(
        f"{name}: host and port can't be read. In a password, / ? # and @ are written %2F %3F %23 and %40"
    )


def checked_redis(name: str, url: str) -> str:
    """Return the URL. Raises ImproperlyConfigured if its host, port or the number of its database can't be
    read: redis-py would take database 0 instead."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss"):
            return url
        number, _ = parts.path.removeprefix("/"), parts.port
    except ValueError:
        raise unreadable_address(name) from None
    if number and not (number.isascii() and number.isdecimal()):
        raise ImproperlyConfigured(f"{name}: the path of the URL is the number of a database, such as /0")
    return url


def broker_url(url: str) -> str:
    """Return a broker URL in kombu's notation: redis-py's ``unix://[:password@]/path?db=0`` becomes
    ``redis+socket://[:password@]/path?virtual_host=0``; others are unchanged. Raises ImproperlyConfigured."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        query = parse_qs(parts.query)
        database = query.get("db", ["0"])[0]
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return f"redis+socket://{user}{parts.path}?virtual_host={database}"
    if parts.scheme in ("redis+socket", "redis", "rediss", "sentinel", "amqp", "amqps", "memory"):
        return url
    raise ImproperlyConfigured(
        "The broker's URL (BROKER_URL, or REDIS_URL where that is not set) must begin with redis://, "
        f"rediss://, unix://, sentinel:// or amqp://, not {parts.scheme or 'nothing'}://"
    )


def is_amqp(url: str) -> bool:
    return urlsplit(url).scheme.startswith("amqp")


def transport_options(url: str, *, sentinel_master: str = "") -> dict[str, Any]:
    """Return the transport options of consumers. RabbitMQ has its own heartbeats and takes other options."""
    if is_amqp(url):
        return {"read_timeout": 5.0, "write_timeout": 5.0}
    options: dict[str, Any] = dict(_REDIS_OPTIONS)
    if urlsplit(url).scheme == "sentinel":
        options["master_name"] = sentinel_master
    return options


def publish_options(url: str, *, sentinel_master: str = "") -> dict[str, Any]:
    """Return the transport options for publishing within a request, with shorter time-outs."""
    if is_amqp(url):
        return {"read_timeout": _PUBLISH_TIMEOUT_SECONDS, "write_timeout": _PUBLISH_TIMEOUT_SECONDS}
    return transport_options(url, sentinel_master=sentinel_master) | {
        "socket_timeout": _PUBLISH_TIMEOUT_SECONDS,
        "socket_connect_timeout": _PUBLISH_TIMEOUT_SECONDS,
    }


def celery_settings(url: str, *, sentinel_master: str = "") -> dict[str, Any]:
    """Celery's configuration for this broker."""
    url = broker_url(url)
    return {
        "broker_url": url,
        "broker_transport_options": transport_options(url, sentinel_master=sentinel_master),
        "hint_transport_options": publish_options(url, sentinel_master=sentinel_master),
        "broker_heartbeat": 10,
        "broker_connection_timeout": 2.0,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # default: 46 minutes
        "broker_channel_error_retry": True,  # a full Redis (noeviction) must not end the worker
        "result_backend": None,  # a Redis backend loses acks when Redis is down; the rows are the results
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_acks_on_failure_or_timeout": True,  # False: a poison message is redelivered for ever
        "task_reject_on_worker_lost": False,  # True: a poison message is redelivered for ever
        "task_publish_retry_policy": PUBLISH_POLICY,
        "task_default_queue": "gpu",  # consumed by workers without a pool; no message is sent to it
        "task_default_delivery_mode": 1,  # not persistent: messages are hints
        "task_create_missing_queues": True,
        "task_send_sent_event": False,  # a second publish in every submit; Flower shows tasks as received
        "task_serializer": "json",
        "accept_content": ["json"],
        "enable_utc": True,
        "imports": ("jobs.tasks", "workflows.tasks"),
        "worker_prefetch_multiplier": 1,
        "worker_pool": "threads",
        "worker_send_task_events": True,
        "worker_enable_remote_control": True,  # Flower needs it
        "worker_enable_prefetch_count_reduction": False,  # a slot would wait after every reconnect
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # runs outlive the broker
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "control_queue_ttl": 60.0,
        "control_queue_expires": 60.0,
        "event_queue_ttl": 10.0,
        "event_queue_expires": 60.0,
        "beat_scheduler": "dispatcher_project.schedule:TickScheduler",
        "beat_schedule": {},
    }
