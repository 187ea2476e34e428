"""Form data as a browser sends it for servers, placements and models."""

from __future__ import annotations

from typing import Any


def server_form(**values: Any) -> dict[str, Any]:
    return {
        "slots": 2,
        "desired": "on",
        "host": "",
        "ca_pem": "",
        "request_headers": "",
        "placements-TOTAL_FORMS": 0,
        "placements-INITIAL_FORMS": 0,
        "quarantined-TOTAL_FORMS": 0,
        "quarantined-INITIAL_FORMS": 0,
        **values,
    }


def placement_form(model: str, endpoint: str) -> dict[str, Any]:
    return {
        "placements-TOTAL_FORMS": 1,
        "placements-0-model": model,
        "placements-0-endpoint": endpoint,
        "placements-0-id": "",
    }


def model_form(**values: Any) -> dict[str, Any]:
    return {
        "model_type": "sync",
        "max_retries": 50,
        "poll_endpoint_template": "",
        "id_field": "",
        "poll_interval": 2.0,
        "max_poll_time": 600.0,
        "max_run_seconds": "",
        "cancel_endpoint_template": "",
        "max_response_bytes": 1000,
        "payload_schema": "null",
        "result_schema": "null",
        "output_files": "null",
        **values,
    }


def errors_of(answer: Any) -> str:
    assert answer.status_code == 200, "it was saved"
    context = answer.context
    forms = [
        context["adminform"].form,
        *(form for set_ in context["inline_admin_formsets"] for form in set_.formset),
    ]
    return " ".join(str(form.errors) for form in forms)
