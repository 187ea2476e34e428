import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    """Where nothing listened, beside when: rows of processes that do not write it are not believed. The
    longest wait is a year at most."""

    dependencies = [
        ("gpus", "0013_quarantine_per_suspect"),
    ]

    operations = [
        migrations.AddField(
            model_name="quarantinedslot",
            name="refused_url",
            field=models.TextField(
                blank=True,
                editable=False,
                help_text="Where that was asked; an answer elsewhere proves nothing.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="modelconfig",
            name="max_queued_seconds",
            field=models.FloatField(
                blank=True,
                default=None,
                help_text="Seconds that a job may wait for it in all; then it fails (max_queued_exceeded)."
                " Empty: DISPATCHER_MAX_QUEUED_SECONDS.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(0.001),
                    django.core.validators.MaxValueValidator(31536000.0),
                ],
            ),
        ),
    ]
