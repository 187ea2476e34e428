"""A sample sent by an operator: signed and checked like every callback, and audited before it is sent."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import pytest
from django.db import connection
from standardwebhooks import Webhook

from gpus.models import AuditEntry
from gpus.registry.queries import RegistryCache
from jobs.callbacks.deliver import send_sample
from jobs.callbacks.message import renew_secret
from jobs.domain.errors import CallbackUrlRefused
from jobs.models import Callback, Tenant
from tests.support.receivers import NOW, Receiver, say

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant(db: None) -> Tenant:
    return Tenant.objects.create(name="acme")


@pytest.mark.usefixtures("loopback_allowed")
def test_a_sample_arrives_signed_and_belongs_to_no_job(receiver: Receiver, tenant: Tenant) -> None:
    secret = renew_secret(tenant)
    outcome = send_sample(tenant, receiver.url, by="user:boss", now=NOW, registry=RegistryCache())
    assert (outcome.status, outcome.error) == (204, "")
    [got] = receiver.got
    signed = {name: value for name, value in got.headers.items() if name.lower() != "webhook-timestamp"}
    assert Webhook(secret).sign(signed["webhook-id"], NOW, got.body.decode()) == signed["webhook-signature"]
    assert b'"status":"test"' in got.body
    assert not Callback.objects.exists()


@pytest.mark.usefixtures("loopback_allowed")
def test_the_audit_names_the_operator_before_a_sample_is_sent(receiver: Receiver, tenant: Tenant) -> None:
    known = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        known.extend(AuditEntry.objects.values_list("actor", "action", "target", "detail__url"))
        connection.close()
        say(500)(handler)

    receiver.answer = answer
    outcome = send_sample(tenant, receiver.url, by="user:boss", now=NOW, registry=RegistryCache())
    assert outcome.error == "HTTP 500"
    assert known == [("user:boss", "send_sample_callback", "tenant:acme", receiver.url)]


def test_a_sample_to_a_refused_address_is_not_sent(receiver: Receiver, tenant: Tenant) -> None:
    with pytest.raises(CallbackUrlRefused):
        send_sample(tenant, receiver.url, by="user:boss", now=NOW, registry=RegistryCache())
    assert receiver.got == []
    assert not AuditEntry.objects.exists()
