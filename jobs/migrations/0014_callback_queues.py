import django.db.models.deletion
from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """Callbacks wait in a queue per tenant and receiver. Older processes leave the new columns empty."""

    atomic = False

    dependencies = [
        ("jobs", "0013_cancel_requests_worker_signs"),
    ]

    operations = [
        migrations.AddField(
            model_name="callback",
            name="tenant",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to="jobs.tenant",
            ),
        ),
        migrations.AddField(
            model_name="callback",
            name="receiver",
            field=models.CharField(editable=False, max_length=300, null=True),
        ),
        migrations.AddField(
            model_name="callback",
            name="sending_until",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        AddIndex(
            model_name="callback",
            index=models.Index(
                condition=models.Q(("state", "pending")),
                fields=["tenant", "receiver", "next_at"],
                name="callback_queue_idx",
            ),
        ),
        AddIndex(
            model_name="callback",
            index=models.Index(
                condition=models.Q(("receiver", None), ("state", "pending")),
                fields=["next_at"],
                name="callback_no_queue_idx",
            ),
        ),
        AddIndex(
            model_name="callback",
            index=models.Index(
                condition=models.Q(("sending_until__isnull", False)),
                fields=["sending_until"],
                name="callback_sending_idx",
            ),
        ),
        migrations.CreateModel(
            name="ReceiverCircuit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("receiver", models.CharField(max_length=300)),
                ("failures", models.PositiveIntegerField(default=0)),
                ("failing_since", models.DateTimeField()),
                ("failed_at", models.DateTimeField()),
                ("resting_until", models.DateTimeField(blank=True, null=True)),
                ("rest_seconds", models.FloatField(default=0.0)),
                ("last_error", models.CharField(blank=True, default="", max_length=500)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "receiver without an answer",
                "verbose_name_plural": "receivers without an answer",
                "ordering": ["-id"],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "receiver"), name="one_circuit_per_receiver")
                ],
            },
        ),
    ]
