from django.db import migrations, models


class Migration(migrations.Migration):
    """Older processes make jobs without the column, which then counts none."""

    dependencies = [
        ("jobs", "0014_callback_queues"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="refusals_folded",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="Attempts that a busy server refused and whose rows are gone.",
            ),
        ),
    ]
