from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """The erasure of a job finds its pushes, also those of an attempt without a row."""

    atomic = False

    dependencies = [("jobs", "0029_tenant_ids")]

    operations = [
        AddIndex(
            model_name="pushedresult",
            index=models.Index(fields=["job_id"], name="pushed_by_job"),
        ),
    ]
