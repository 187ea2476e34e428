from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="SweepRun",
            fields=[
                ("name", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("looked", models.PositiveIntegerField(default=0)),
                ("repaired", models.PositiveIntegerField(default=0)),
                ("note", models.CharField(blank=True, default="", max_length=500)),
            ],
            options={"ordering": ["name"]},
        ),
    ]
