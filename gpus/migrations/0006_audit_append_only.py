from django.db import migrations

from gpus.migrations._append_only import AppendOnly


class Migration(migrations.Migration):
    """What the models promise of audit entries holds for everybody."""

    dependencies = [
        ("gpus", "0005_server_machine"),
    ]

    operations = [
        AppendOnly("gpus_auditentry", "an audit entry"),
    ]
