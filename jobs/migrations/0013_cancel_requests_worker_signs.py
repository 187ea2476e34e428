from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """Workers' signs of life, and an index of the unfinished jobs whose cancel was asked for."""

    atomic = False

    dependencies = [
        ("jobs", "0012_longest_wait"),
    ]

    operations = [
        migrations.CreateModel(
            name="WorkerSign",
            fields=[
                ("worker", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("cut_off", models.JSONField(blank=True, default=list)),
            ],
            options={
                "ordering": ["worker"],
                "indexes": [models.Index(fields=["at"], name="worker_sign_at_idx")],
            },
        ),
        AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("cancel_requested_at__isnull", False), ("finished_at", None)),
                fields=["cancel_requested_at"],
                name="job_cancel_requested_idx",
            ),
        ),
    ]
