from django.db import migrations, models

from foundation.database.index_operations import AddIndex


class Migration(migrations.Migration):
    """The job that a job runs again. Nullable and without a default, so that no row is rewritten."""

    atomic = False

    dependencies = [("jobs", "0024_progress_index")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="rerun_of",
            field=models.CharField(
                blank=True,
                default=None,
                help_text="Id of the job that this one runs again; that one may be removed.",
                max_length=26,
                null=True,
            ),
        ),
        AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("rerun_of__isnull", False)), fields=["rerun_of"], name="job_rerun_idx"
            ),
        ),
    ]
