from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0005_tally"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("error_code", ""), _negated=True),
                fields=["error_code", "-id"],
                name="attempt_error_idx",
            ),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("state__in", ["cancelled", "lost"])),
                fields=["state", "-id"],
                name="attempt_unusual_idx",
            ),
        ),
        migrations.AddIndex(
            model_name="callback",
            index=models.Index(
                condition=models.Q(("state__in", ["gave_up", "gone"])),
                fields=["state", "-id"],
                name="callback_undelivered_idx",
            ),
        ),
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(
                    ("type__in", ["accepted", "completed", "queued", "started"]), _negated=True
                ),
                fields=["type", "-id"],
                name="event_unusual_idx",
            ),
        ),
    ]
