from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0006_unusual_rows"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="job", name="job_dead_letter_idx"),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("dismissed_at", None), ("state", "failed")),
                fields=["finished_at"],
                name="job_dead_letter_idx",
            ),
        ),
    ]
