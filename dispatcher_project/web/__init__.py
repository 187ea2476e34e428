"""The web server: uvicorn with bounds on what a connection may cost (docs/explanation/security.md)."""

import dispatcher_project.structlog_without_rich  # noqa: F401
