import django.core.validators
from django.db import migrations, models

from foundation.database.index_operations import AddIndex, in_transaction


class Migration(migrations.Migration):
    """The longest wait in the queue, equal failures in a row, and whose cancel it was."""

    atomic = False

    dependencies = [
        ('jobs', '0011_rare_events'),
    ]

    operations = [
        in_transaction(
            migrations.AddField(
                model_name='job',
                name='cancelled_by_operator',
                field=models.BooleanField(db_default=False, default=False, help_text="The cancel was an operator's."),
            )
        ),
        in_transaction(
            migrations.AddField(
                model_name='job',
                name='queue_deadline_at',
                field=models.DateTimeField(blank=True, help_text='When it has waited for max_queued_seconds; runs push it back.', null=True),
            )
        ),
        in_transaction(
            migrations.AddField(
                model_name='job',
                name='same_failures',
                field=models.PositiveIntegerField(db_default=0, default=0, help_text='Equal failures in a row, up to the last counted attempt.'),
            )
        ),
        in_transaction(
            migrations.AddField(
                model_name='tenant',
                name='max_queued_seconds',
                field=models.FloatField(blank=True, default=None, help_text="Seconds that a job of this tenant may wait in all; then it fails (max_queued_exceeded). The shorter of this and the model's counts. Empty: the model's, else DISPATCHER_MAX_QUEUED_SECONDS.", null=True, validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(31536000.0)]),
            )
        ),
        in_transaction(
            migrations.AlterField(
                model_name='job',
                name='error_fingerprint',
                field=models.CharField(blank=True, db_default='', default='', help_text='Of a FAILED job: which kind of failure. Of one that waits: of its last counted attempt.', max_length=16),
            )
        ),
        AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('finished_at', None), ('queue_deadline_at__isnull', False)), fields=['queue_deadline_at'], name='job_queue_deadline_idx'),
        ),
    ]
