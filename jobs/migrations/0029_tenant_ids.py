from __future__ import annotations

import jobs.models.tenant
from django.db import migrations, models


class Migration(migrations.Migration):
    """New tenants get ids by time. The column stays as it is."""

    dependencies = [("jobs", "0028_limits_of_tenants")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="tenant",
                    name="id",
                    field=models.BigAutoField(
                        default=jobs.models.tenant.new_tenant_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                )
            ]
        )
    ]
