from django.db import migrations


class Migration(migrations.Migration):
    initial = True

    dependencies = [("jobs", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="DeadLetter",
            fields=[],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("jobs.job",),
        ),
    ]
