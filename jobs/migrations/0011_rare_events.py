from django.db import migrations, models

from foundation.database.index_operations import AddIndex, RemoveIndex


class Migration(migrations.Migration):
    """The index of rare events without those that runs tell of themselves, which are many."""

    atomic = False

    dependencies = [
        ("jobs", "0010_run_news_and_usage"),
    ]

    operations = [
        AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(
                    (
                        "type__in",
                        ["accepted", "completed", "partial", "progress", "queued", "started"],
                    ),
                    _negated=True,
                ),
                fields=["type", "-id"],
                name="event_rare_idx",
            ),
        ),
        RemoveIndex(model_name="event", name="event_unusual_idx"),
    ]
