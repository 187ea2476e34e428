from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """An index of the dead letters that an operator decides about: those without client errors."""

    atomic = False

    dependencies = [("jobs", "0022_end_notices")]

    operations = [
        AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    ("dismissed_at", None),
                    ("state", "failed"),
                    models.Q(("error_code__in", ["bad_input"]), _negated=True),
                ),
                fields=["finished_at"],
                name="job_actionable_idx",
            ),
        ),
    ]
