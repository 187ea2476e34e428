from __future__ import annotations

from django.db import models


class SignInFailure(models.Model):
    """Failed sign-ins of one account from one address; a success deletes the row, as does the sweep.

    address: an IPv4 address or an IPv6 network of 64 bits. account: a digest of the name as typed, since
    people type passwords there, too. count: since the last pause of `sign_in_lock_seconds`.
    """

    address = models.CharField(max_length=50)
    account = models.CharField(max_length=64, editable=False)
    count = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField()

    class Meta:
        ordering = ["-last_at"]
        constraints = [
            models.UniqueConstraint(fields=["address", "account"], name="one_sign_in_failure_each")
        ]
        indexes = [models.Index(fields=["last_at"], name="sign_in_failure_last_idx")]

    def __str__(self) -> str:
        return f"{self.address}: {self.count}"
