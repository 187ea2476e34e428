from __future__ import annotations


def test_the_bare_address_redirects_to_the_api_documentation(client):
    answer = client.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/api/v1/docs")


def test_a_missing_page_links_the_admin_site_and_the_api(client, db):
    answer = client.get("/queue/<submit>")
    text = answer.content.decode()
    assert (answer.status_code, "submit" in text) == (404, False)  # a path may have a key in it
    assert 'href="/admin/"' in text
    assert 'href="/api/v1/docs"' in text
