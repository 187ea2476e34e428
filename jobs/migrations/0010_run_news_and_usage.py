from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0009_tenant_bands_and_limits"),
    ]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="usage",
            field=models.JSONField(blank=True, default=None, null=True),
        ),
    ]
