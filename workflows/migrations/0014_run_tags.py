import django.db.models.deletion
from django.db import migrations, models

PAGE = 1000


def fill(apps, schema_editor):
    """For runs that were started before there were rows of tags."""
    alias = schema_editor.connection.alias
    tags = apps.get_model("workflows", "RunTag").objects.using(alias)
    runs = apps.get_model("workflows", "Run").objects.using(alias)
    tagged = runs.exclude(tags=[]).order_by("id").only("tenant_id", "tags")
    last = ""
    while page := list(tagged.filter(id__gt=last)[:PAGE]):
        tags.bulk_create(
            [
                tags.model(run_id=run.id, tenant_id=run.tenant_id, tag=tag)
                for run in page
                for tag in dict.fromkeys(run.tags)
            ]
        )
        last = page[-1].id


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0028_limits_of_tenants"),
        ("workflows", "0013_sent_signals"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunTag",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("tag", models.CharField(max_length=64)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tag_rows",
                        to="workflows.run",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tag", "tenant", "run"), name="one_row_per_run_and_tag"
                    )
                ],
            },
        ),
        migrations.RunPython(fill, migrations.RunPython.noop, elidable=True),
    ]
