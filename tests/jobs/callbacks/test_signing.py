from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from jobs.callbacks.message import current_secret, new_secret, renew_secret, sign, signing_secrets
from jobs.models import Tenant


def test_any_standard_webhooks_library_verifies_the_signature() -> None:
    secret = new_secret()
    headers = sign(secret, "msg_1", datetime.now(UTC), '{"a":"é"}')
    assert Webhook(secret).verify('{"a":"é"}', headers) == {"a": "é"}


def test_a_changed_body_or_another_secret_is_noticed() -> None:
    secret = new_secret()
    headers = sign(secret, "msg_1", datetime.now(UTC), "{}")
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify("[]", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify("{}", headers)


def test_a_secret_has_the_specified_form_and_size() -> None:
    secret = new_secret()
    assert secret.startswith("whsec_")
    assert 24 <= len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) <= 64
    assert new_secret() != secret


@pytest.mark.django_db
def test_a_tenants_secret_is_stored_encrypted_and_can_be_renewed() -> None:
    tenant = Tenant.objects.create(name="acme")
    first = renew_secret(tenant)
    stored = Tenant.objects.get(name="acme")
    assert current_secret(stored) == first
    assert first not in stored.webhook_secret_encrypted
    assert renew_secret(tenant) != first


@pytest.mark.django_db
def test_a_tenant_without_a_secret_gets_one_that_stays() -> None:
    tenant = Tenant.objects.create(name="acme")
    stale = Tenant.objects.get(name="acme")
    made = current_secret(tenant)
    assert made == current_secret(stale) == current_secret(Tenant.objects.get(name="acme"))


@pytest.mark.django_db
def test_while_two_secrets_overlap_a_receiver_with_either_verifies() -> None:
    tenant = Tenant.objects.create(name="acme")
    oldest, old = renew_secret(tenant), renew_secret(tenant, overlap_seconds=60)
    new = renew_secret(tenant, overlap_seconds=60)
    now = datetime.now(UTC)
    stored = Tenant.objects.get(name="acme")
    headers = sign(signing_secrets(stored, now), "msg_1", now, "{}")
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        assert Webhook(secret).verify("{}", headers) == {}
    with pytest.raises(WebhookVerificationError):
        Webhook(oldest).verify("{}", headers)
    assert signing_secrets(stored, now + timedelta(seconds=61)) == [new]
    assert old not in stored.webhook_secret_before_encrypted


@pytest.mark.django_db
def test_without_overlap_a_replaced_secret_signs_no_more() -> None:
    tenant = Tenant.objects.create(name="acme")
    renew_secret(tenant)
    new = renew_secret(tenant)
    assert signing_secrets(tenant, datetime.now(UTC)) == [new]
