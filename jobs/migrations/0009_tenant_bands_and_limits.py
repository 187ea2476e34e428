import django.core.validators
from django.db import migrations, models


def keep_urgent(apps, schema_editor):
    """Tenants that exist could use every band until now, and go on."""
    apps.get_model("jobs", "Tenant").objects.using(schema_editor.connection.alias).update(highest_band="urgent")


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0008_front_door'),
    ]

    operations = [
        migrations.AddField(
            model_name='tenant',
            name='highest_band',
            field=models.CharField(choices=[('urgent', 'urgent'), ('normal', 'normal'), ('bulk', 'bulk')], db_default='normal', default='normal', help_text="The highest band its jobs may stand in. urgent: priority 1 to 3, before everybody's normal jobs. Jobs that ask for more stand in this band, and are ordered among its own by their priority.", max_length=6),
        ),
        migrations.AddField(
            model_name='tenant',
            name='max_running',
            field=models.PositiveIntegerField(blank=True, help_text='So many of its jobs run at once, in all pools of a fleet together; further ones wait in their places. Empty: no limit. To let nothing start, pause the tenant.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(1000000)]),
        ),
        migrations.AlterField(
            model_name='tenant',
            name='weight',
            field=models.FloatField(default=1.0, help_text='Share of GPU-seconds relative to other tenants: who has 2 gets twice as much as who has 1, while both wait.', validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(1000000.0)]),
        ),
        migrations.AddConstraint(
            model_name='tenant',
            constraint=models.CheckConstraint(condition=models.Q(('weight__gt', 0)), name='tenant_weight_is_positive'),
        ),
        migrations.AddConstraint(
            model_name='tenant',
            constraint=models.CheckConstraint(condition=models.Q(('max_running', None), ('max_running__gte', 1), _connector='OR'), name='tenant_may_run_something'),
        ),
        migrations.AddConstraint(
            model_name='tenant',
            constraint=models.CheckConstraint(condition=models.Q(('highest_band__in', ['urgent', 'normal', 'bulk'])), name='tenant_band_is_known'),
        ),
        migrations.RunPython(keep_urgent, migrations.RunPython.noop, elidable=True),
    ]
