"""The HTTP API: Django REST framework, its OpenAPI document, request logging."""

from __future__ import annotations

from typing import Any

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "jobs.api.authentication.KeyAuthentication",
        "jobs.api.authentication.StaffSession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["jobs.api.authentication.IsKnown"],
    "DEFAULT_PARSER_CLASSES": ["foundation.http_api.json_body.StrictJsonParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "jobs.api.errors.handle_exception",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_METADATA_CLASS": None,
}

SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "GPU dispatcher",
    "DESCRIPTION": "Submit AI inference jobs, follow them, and run the fleet of GPU servers.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENFORCE_NON_BLANK_FIELDS": True,
    "POSTPROCESSING_HOOKS": ["jobs.api.documents.add_components"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

CSRF_FAILURE_VIEW = "jobs.api.errors.csrf_failure"
IPWARE_META_PRECEDENCE_ORDER = ("REMOTE_ADDR",)  # in which the web server puts what a trusted proxy says
DJANGO_STRUCTLOG_STATUS_4XX_LOG_LEVEL = 20  # a client's mistake is no warning
