from django.db import migrations, models


class Migration(migrations.Migration):
    """Older processes store pushes without the columns, which then count one push of no bytes."""

    dependencies = [("jobs", "0015_refusals_folded")]

    operations = [
        migrations.AddField(
            model_name="pushedresult",
            name="pushes",
            field=models.PositiveIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name="pushedresult",
            name="pushed_bytes",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
    ]
