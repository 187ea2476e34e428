from django.db import migrations, models

from jobs.domain.failure_fingerprints import fingerprint_of

PAGE = 1000


def fill(apps, schema_editor):
    """For jobs that failed before there were fingerprints."""
    jobs = apps.get_model("jobs", "Job").objects.using(schema_editor.connection.alias)
    failed = (
        jobs.filter(state="failed", error_fingerprint="").order_by("id").only("error_code", "error_message")
    )
    last = ""
    while page := list(failed.filter(id__gt=last)[:PAGE]):
        for job in page:
            job.error_fingerprint = fingerprint_of(job.error_code, job.error_message)
        jobs.bulk_update(page, ["error_fingerprint"])
        last = page[-1].id


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0003_rollup"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="error_fingerprint",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Of a FAILED job: which kind of failure.",
                max_length=16,
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("dismissed_at", None), ("state", "failed")),
                fields=["error_fingerprint", "model", "finished_at"],
                name="job_failure_kind_idx",
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
