from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    name = "workflows.schedules"
    label = "schedules"
    verbose_name = "Schedules"
    default_auto_field = "django.db.models.BigAutoField"
