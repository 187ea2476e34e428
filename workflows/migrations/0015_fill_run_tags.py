from django.db import migrations, transaction

PAGE = 1000


def fill(apps, schema_editor):
    """For runs that were started before there were rows of tags. The runs of a page are locked: a sweep that
    deletes one meanwhile would leave rows of tags that break the foreign key."""
    alias = schema_editor.connection.alias
    tags = apps.get_model("workflows", "RunTag").objects.using(alias)
    runs = apps.get_model("workflows", "Run").objects.using(alias)
    tagged = runs.exclude(tags=[]).order_by("id").only("tenant_id", "tags")
    last = ""
    while True:
        with transaction.atomic(using=alias):
            page = list(tagged.select_for_update().filter(id__gt=last)[:PAGE])
            tags.bulk_create(
                [
                    tags.model(run_id=run.id, tenant_id=run.tenant_id, tag=tag)
                    for run in page
                    for tag in dict.fromkeys(run.tags)
                ],
                ignore_conflicts=True,  # of a migration that was interrupted
            )
        if not page:
            return
        last = page[-1].id


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("workflows", "0014_run_tags")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop, elidable=True)]
