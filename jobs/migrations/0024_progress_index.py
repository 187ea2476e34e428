from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """The index of progress."""

    atomic = False

    dependencies = [
        ("jobs", "0023_actionable_dead_letters"),
    ]

    operations = [
        AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("type", "progress")),
                fields=["job", "-seq"],
                name="event_progress_idx",
            ),
        ),
    ]
