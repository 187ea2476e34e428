"""A wrong setting is named in one sentence; an address has no slash at its end."""

from __future__ import annotations

import environ
import pytest
from django.core.exceptions import ImproperlyConfigured

from dispatcher_project.settings.base import database
from dispatcher_project.settings.celery import checked_redis
from dispatcher_project.settings.dispatcher import read_settings


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DISPATCHER_LEASE_SECONDS", "1x5", "must be a number, it is '1x5'"),
        ("DISPATCHER_WORKER_THREADS", "6.5", "must be a whole number, it is '6.5'"),
        ("DISPATCHER_POISON_DEATHS", "-1", "must not be negative"),
        ("DISPATCHER_RETENTION_DAYS", "inf", "must be finite, it is inf"),
        ("DISPATCHER_LEASE_SECONDS", "nan", "must be finite, it is nan"),
        (
            "DISPATCHER_MAX_QUEUED_SECONDS",
            "1e12",
            r"is at most 3.1536e\+07 \(a year; 0: for ever\), it is 1e\+12",
        ),
        ("DISPATCHER_WORKER_SILENT_SECONDS", "0", "must be more than 0"),
        ("DISPATCHER_COG_UPLOAD_SHARE", "0", "must be more than 0 and at most 1, it is 0"),
        ("DISPATCHER_COG_UPLOAD_SHARE", "1.1", "must be more than 0 and at most 1, it is 1.1"),
        ("DISPATCHER_TELEMETRY_HOURS", "169", r"is at most 168 \(a week\), it is 169"),
        ("DISPATCHER_LEASE_SECONDS", "10", "DISPATCHER_RENEW_SECONDS must be less than half"),
        ("DISPATCHER_PUBLIC_URL", "gpu.example", "must be http:// or https:// with a host"),
        ("DISPATCHER_PUBLIC_URL", "https://", "must be http:// or https:// with a host"),
        ("DISPATCHER_ARTIFACT_URL", "ftp://gpu.example", "must be http:// or https:// with a host"),
        ("DISPATCHER_ARTIFACT_URL", "https://gpu.example/?a=1", "must be http:// or https:// with a host"),
        ("DISPATCHER_CALLBACK_NETWORKS", "10.0.0.0/99", "DISPATCHER_CALLBACK_NETWORKS: "),
    ],
)
def test_an_invalid_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured, match=says) as error:
        read_settings(environ.Env())
    assert name in str(error.value)


def test_a_slash_at_the_end_of_an_address_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCHER_PUBLIC_URL", "https://gpu.example/")
    monkeypatch.setenv("DISPATCHER_ARTIFACT_URL", "https://files.example/")
    found = read_settings(environ.Env())
    assert (found.public_url, found.artifact_url) == ("https://gpu.example", "https://files.example")


@pytest.mark.parametrize("url", ["foo", "mysql://somebody:secret@db/x"])
def test_an_unknown_database_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL must begin with") as error:
        database(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("rest", ["//u:secret@db:99999/x", "//u:secret/2@db/x", "//u:secret@[::1/x"])
def test_an_unreadable_address_is_refused_without_a_part_of_its_password(rest: str) -> None:
    for refuse in (
        lambda: database(f"postgresql:{rest}"),
        lambda: checked_redis("REDIS_URL", f"redis:{rest}"),
    ):
        with pytest.raises(ImproperlyConfigured, match="host and port can't be read") as error:
            refuse()
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["sqlite://db.sqlite3", "sqlite://var/db.sqlite3", "sqlite://"])
def test_a_path_of_too_few_slashes_is_no_database_in_memory(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="three slashes"):
        database(url)


@pytest.mark.parametrize("path", ["/abc", "/-1", "/0/1", "/\u0661"])
def test_a_redis_database_that_is_no_number_is_not_database_0(path: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="number of a database"):
        checked_redis("BROKER_URL", f"redis://127.0.0.1{path}")


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "rediss://u:p@[::1]:6379/3?x=1",
        "unix:///run/r.sock?db=1",
        "redis+sentinel://a:1,b:2/m/0",
        "amqp://h//",
    ],
)
def test_good_addresses_stay(url: str) -> None:
    assert checked_redis("REDIS_URL", url) == url
