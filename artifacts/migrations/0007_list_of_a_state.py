from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """Indexes for lists filtered by state, in which rows of one state are rare."""

    atomic = False

    dependencies = [("artifacts", "0006_put_until")]

    operations = [
        AddIndex(
            model_name="artifact",
            index=models.Index(fields=["tenant_id", "state", "-id"], name="artifact_tenant_state_idx"),
        ),
        AddIndex(
            model_name="artifact",
            index=models.Index(fields=["state", "-id"], name="artifact_state_idx"),
        ),
    ]
