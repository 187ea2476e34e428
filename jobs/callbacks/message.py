"""A callback's message: its row in the outbox, written in the transaction that ends the job, and its
signature.

Signatures follow Standard Webhooks (https://www.standardwebhooks.com, symmetric, ``v1``). Each tenant's
secret is stored encrypted, and shown once, when it is made.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone
from standardwebhooks import Webhook

from foundation import json_text
from foundation.database.row_codec import new_row
from foundation.ids import new_id
from foundation.secrets import SecretUnreadable, decrypt, encrypt
from jobs.callbacks.guard import receiver_of
from jobs.domain.access import shown_error
from jobs.domain.states import JobState
from jobs.models import Callback, Job, Tenant

_SECRET_BYTES = 32


def callback_for(job: Job, *, now: datetime) -> Callback | None:
    """Make the outbox row of a job in a final state, due at once; None if no callback was requested.

    Its id is the `webhook-id`, the same in every try; its body never changes.
    """
    if not job.callback_url:
        return None
    message_id = f"msg_{new_id(now.timestamp())}"
    return _new(
        job.callback_url,
        _body(job),
        now,
        id=message_id,
        tenant_id=job.tenant_id,
        round=job.round,
        job_id=job.id,
    )


def callback_of(subject: str, round: int, *, url: str, body: Any, tenant_id: int, now: datetime) -> Callback:
    """Make the outbox row of something that is no job, due at once.

    subject: as in `Callback`. body: a JSON value. The row's id is that of `subject_message_id`, so a second
    one for the same round violates the primary key.
    """
    text = json_text.dumps(body, sort_keys=True)
    message_id = subject_message_id(subject, round)
    return _new(url, text, now, id=message_id, tenant_id=tenant_id, round=round, subject=subject)


def subject_message_id(subject: str, round: int) -> str:
    """Return the `webhook-id` of the callback of a subject's round."""
    return f"msg_{subject.partition(':')[2]}_{round}"


def _new(url: str, body: str, now: datetime, **of: Any) -> Callback:
    return new_row(
        Callback,
        receiver=receiver_of(url),
        url=url,
        body=body,
        state=Callback.State.PENDING,
        next_at=now,
        created_at=now,
        **of,
    )


def _body(job: Job) -> str:
    """Return canonical JSON in ASCII: a lone surrogate in a result must not keep the job from ending."""
    body: dict[str, Any] = {
        "job_id": job.id,
        "status": str(job.state),
        "model": job.model,
        "tags": job.tags,
        "metadata": job.metadata,
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
    }
    if job.state == JobState.COMPLETED:
        body["result"] = job.result
    else:
        code, tenant_errors = job.error_code or str(job.state), settings.DISPATCHER.tenant_errors
        body["error"] = shown_error(code, job.error_message, in_full=False, tenant_errors=tenant_errors)
    return json_text.dumps(body, sort_keys=True)


def new_secret() -> str:
    """Return ``whsec_`` and 32 random bytes in base 64, the form that Standard Webhooks libraries read."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode("ascii")


def sign(secret: str | Sequence[str], message_id: str, timestamp: datetime, body: str) -> dict[str, str]:
    """Return the three headers by which a receiver verifies `body`.

    secret: one or several; each makes a signature; a receiver accepts any of them. timestamp:
    aware; of this try.
    """
    secrets_used = [secret] if isinstance(secret, str) else secret
    signatures = [Webhook(one).sign(message_id, timestamp, body) for one in secrets_used]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(timestamp.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def renew_secret(tenant: Tenant, *, overlap_seconds: float = 0.0) -> str:
    """Give the tenant a new secret, and return it: the only time that it is shown in the clear.

    overlap_seconds: how long the current secret signs, too; an older one signs no more.
    """
    secret, old = new_secret(), tenant.webhook_secret_encrypted
    overlaps = bool(old) and overlap_seconds > 0
    tenant.webhook_secret_before_encrypted = old if overlaps else ""
    tenant.webhook_secret_before_until = (
        timezone.now() + timedelta(seconds=overlap_seconds) if overlaps else None
    )
    tenant.webhook_secret_encrypted = encrypt(secret)
    tenant.save(
        update_fields=[
            "webhook_secret_encrypted",
            "webhook_secret_before_encrypted",
            "webhook_secret_before_until",
        ]
    )
    return secret


def signing_secrets(tenant: Tenant, now: datetime) -> list[str]:
    """Return all secrets that sign a callback now, the current one first."""
    secrets = [current_secret(tenant)]
    until = tenant.webhook_secret_before_until
    if tenant.webhook_secret_before_encrypted and until is not None and now < until:
        secrets.append(decrypt(tenant.webhook_secret_before_encrypted))
    return secrets


def secrets_are_readable(tenant: Tenant, now: datetime) -> bool:
    """Return False if this process cannot decrypt a secret that signs a callback now. Writes nothing."""
    if not tenant.webhook_secret_encrypted:
        return True
    try:
        signing_secrets(tenant, now)
    except SecretUnreadable:
        return False
    return True


def current_secret(tenant: Tenant) -> str:
    """Return the tenant's secret. A tenant without one gets one now: its receiver can't verify it yet, but no
    callback is unsigned."""
    if not tenant.webhook_secret_encrypted:
        made = encrypt(new_secret())
        Tenant.objects.filter(pk=tenant.pk, webhook_secret_encrypted="").update(webhook_secret_encrypted=made)
        tenant.refresh_from_db(fields=["webhook_secret_encrypted"])
    return decrypt(tenant.webhook_secret_encrypted)
