from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0004_error_fingerprint"),
    ]

    operations = [
        migrations.CreateModel(
            name="Tally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=40)),
                ("model", models.CharField(blank=True, default="", max_length=64)),
                ("code", models.CharField(blank=True, default="", max_length=64)),
                ("count", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "ordering": ["name", "model", "code"],
                "constraints": [
                    models.UniqueConstraint(fields=("name", "model", "code"), name="one_tally_each")
                ],
            },
        ),
    ]
