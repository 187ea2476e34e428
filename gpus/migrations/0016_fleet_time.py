from django.db import migrations, models


class Migration(migrations.Migration):
    """How far a fleet's time, and so its fences, went ahead of the time of rows."""

    dependencies = [
        ("gpus", "0015_shortest_run_limit"),
    ]

    operations = [
        migrations.AddField(
            model_name="fleetindex",
            name="time_us",
            field=models.BigIntegerField(blank=True, default=None, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="fleetindex",
            name="time_seen_at",
            field=models.DateTimeField(blank=True, default=None, editable=False, null=True),
        ),
    ]
