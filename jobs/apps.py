from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.core.checks import Tags, register

        from foundation.ttl_cache import RowChanges
        from jobs.models import Tenant
        from jobs.reports.store_hosts import check_store_hosts

        self.tenant_changes = RowChanges((Tenant,))

        register(check_store_hosts, Tags.database)
        # connects receivers of gpus' signals: a server is registered, a slot is proven free
        from jobs.execution import orphaned_runs  # noqa: F401
