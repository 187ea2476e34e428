from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """The order of lists of runs without sub-runs: a map has 100,000 of them."""

    atomic = False

    dependencies = [("workflows", "0011_versions_never_change")]

    operations = [
        AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("parent_node", None)),
                fields=["tenant", "-id"],
                name="run_started_idx",
            ),
        ),
    ]
