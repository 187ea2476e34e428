from __future__ import annotations


def test_the_bare_address_redirects_to_the_api_documentation(client):
    answer = client.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/api/v1/docs")
