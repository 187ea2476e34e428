import dispatcher_project.structlog_without_rich  # noqa: F401
