"""How the operators' admin looks. Everything it loads comes from this process."""

from __future__ import annotations

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy

FORMAT_MODULE_PATH = ["admin_ui.formats"]

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "GPU dispatcher",
    "SITE_HEADER": "GPU dispatcher",
    "SITE_SUBHEADER": "Operators",
    "SITE_SYMBOL": "memory",
    "SITE_URL": reverse_lazy("admin:index"),
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "type": "image/svg+xml",
            "href": lambda request: static("admin_ui/favicon.svg"),
        }
    ],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_BACK_BUTTON": True,
    "STYLES": [lambda request: static("admin_ui/admin.css")],
    "DASHBOARD_CALLBACK": "admin_ui.navigation.tidy_index",
    "SIDEBAR": {
        "show_search": True,
        "command_search": False,
        "show_all_applications": False,
        "navigation": "admin_ui.navigation.side_bar",
    },
    "COLORS": {
        "primary": {
            "50": "#ecfdf5",
            "100": "#d1fae5",
            "200": "#a7f3d0",
            "300": "#6ee7b7",
            "400": "#34d399",
            "500": "#10b981",
            "600": "#059669",
            "700": "#047857",
            "800": "#065f46",
            "900": "#064e3b",
            "950": "#022c22",
        }
    },
}
