from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # connects receivers of gpus' signals: a server is registered, a slot is proven free
        from jobs.execution import orphaned_runs  # noqa: F401
