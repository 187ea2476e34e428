"""The metrics as a scraper reads them."""

from __future__ import annotations

from rest_framework.test import APIClient


def scrape(client: APIClient) -> dict[str, float]:
    """Return the samples of the text format, by name and labels."""
    lines = client.get("/metrics").content.decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}
