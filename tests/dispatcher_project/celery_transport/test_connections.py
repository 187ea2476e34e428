"""Workers of the dispatcher's own queues keep their database connections between tasks."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from celery import signals
from celery.fixups.django import DjangoWorkerFixup
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections

from dispatcher_project.celery import app
from dispatcher_project.celery_transport import run


@pytest.fixture
def kept() -> Iterator[None]:
    run.keep_connections()
    yield
    app.conf.CELERY_DB_REUSE_MAX = None
    signals.task_prerun.disconnect(close_old_connections)


@pytest.mark.usefixtures("kept")
def test_celery_closes_no_connection_around_a_task() -> None:
    with patch.object(DjangoWorkerFixup, "_close_database") as closed:
        fixup = DjangoWorkerFixup(app)
        for _ in range(1000):
            fixup.close_database()
    assert not closed.called


@pytest.mark.usefixtures("kept")
def test_each_task_begins_with_a_check_of_its_connection() -> None:
    one = connections[DEFAULT_DB_ALIAS]
    with patch.object(one, "close_if_unusable_or_obsolete") as looked:
        signals.task_prerun.send(sender=None)
    assert looked.called
