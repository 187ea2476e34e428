import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('gpus', '0008_health_of_plain_servers'),
    ]

    operations = [
        migrations.AddField(
            model_name='modelconfig',
            name='max_queued_seconds',
            field=models.FloatField(blank=True, default=None, help_text='Seconds that a job may wait for it in all; then it fails (max_queued_exceeded). Empty: DISPATCHER_MAX_QUEUED_SECONDS.', null=True, validators=[django.core.validators.MinValueValidator(0.001)]),
        ),
    ]
