"""Jobs of runs use the artifacts that their payloads refer to."""

from __future__ import annotations

import hashlib

import pytest

from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import ref
from foundation.ids import new_id
from jobs.models import Job
from tests.workflows.theatre import Theatre, model, states
from workflows.execution import writes
from workflows.models import Node

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
NODES = {"nodes": {"a": model(payload={"film": {"$ref": "inputs.film"}})}}


def make_artifact(theatre: Theatre, **values: object) -> Artifact:
    now = theatre.ports.clock.now()
    given = {"tenant_id": theatre.tenant.pk, "state": "stored", **values}
    digest = hashlib.sha256(b"film").hexdigest()
    return Artifact.objects.create(
        id=new_id(), sha256=digest, bytes=4, created_at=now, expires_at=now, stored_at=now, **given
    )


def test_a_node_uses_the_artifacts_of_its_payload(theatre: Theatre) -> None:
    film = make_artifact(theatre, tombstoned_at=theatre.ports.clock.now())
    run = theatre.start(NODES, {"film": ref(film.pk)})
    theatre.advance(run)
    assert list(ArtifactUse.objects.values_list("artifact_id", "job")) == [(film.pk, Job.objects.get().id)]
    film.refresh_from_db()
    assert film.tombstoned_at is None


def test_a_node_with_another_tenants_artifact_fails(theatre: Theatre) -> None:
    film = make_artifact(theatre, tenant_id=10**6)
    run = theatre.start(NODES, {"film": ref(film.pk)})
    theatre.advance(run)
    assert (Node.objects.get().code, states(run)) == ("artifact_missing", {"a": "failed"})
    assert not ArtifactUse.objects.exists()


def test_an_artifact_that_is_removed_between_check_and_commit_fails_the_node(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = make_artifact(theatre)
    run = theatre.start(NODES, {"film": ref(film.pk)})
    with monkeypatch.context() as patch:
        patch.setattr(writes, "lock_for_use", lambda ids: set())
        assert theatre.advancer.advance(run.id) is True  # it is to begin anew
    assert not Job.objects.exists()
    Artifact.objects.update(state="gone")
    theatre.advance(run)
    assert (Node.objects.get().code, states(run)) == ("artifact_missing", {"a": "failed"})
    assert not Job.objects.exists()
