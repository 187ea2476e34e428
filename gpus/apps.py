from django.apps import AppConfig


class GpusConfig(AppConfig):
    name = "gpus"
    verbose_name = "GPU fleet"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from foundation.ttl_cache import RowChanges
        from gpus.models import ModelConfig, Placement, Pool, Server
        from gpus.registry.queries import rows_changed

        self.row_changes = RowChanges((ModelConfig, Placement, Pool, Server), [rows_changed])
