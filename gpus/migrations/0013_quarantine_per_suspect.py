from django.db import migrations, models


class Migration(migrations.Migration):
    """A slot may have several suspects; each has its own row until it is proven gone."""

    dependencies = [
        ("gpus", "0012_queues_of_a_process"),
    ]

    operations = [
        migrations.RemoveConstraint(model_name="quarantinedslot", name="one_open_quarantine_per_slot"),
        migrations.AddConstraint(
            model_name="quarantinedslot",
            constraint=models.UniqueConstraint(
                condition=models.Q(("freed_at__isnull", True)),
                fields=("server", "slot", "attempt_id"),
                name="one_open_quarantine_per_suspect",
            ),
        ),
    ]
