"""A worker's recent telemetry over HTTP."""

from __future__ import annotations

import pytest

from gpus.leasing.values import Measured, Spread, Summary
from tests.support.api_harness import Account, ApiHarness, api, operator
from tests.support.factories import make_model, make_server
from tests.support.problems import problem

__all__ = ["api", "operator"]

URL = "/api/v1/admin/servers/box-gpu0/telemetry"
READING = {
    "at": 1_700_000_000.5,
    "warm": ["flux"],
    "models_ram_mb": 700,
    "cpus": 16,
    "cpu_percent": 12.5,
    "ram_total_mb": 4096,
    "ram_used_mb": 2048,
}
GPU = {
    "total_mb": 16384.0,
    "used_mb": 8192.0,
    "utilisation": 87.0,
    "temperature": 61,
    "power": 250.0,
    "ecc_errors": 0,
    "throttled": ["hardware thermal"],
    "xids": {"31": 2},
    "processes": {"77": 8000.0, "78": None},
}


@pytest.fixture(autouse=True)
def box(operator: Account, api: ApiHarness) -> None:
    make_server("box-gpu0", model=make_model("flux"), machine="box", host="box-gpu0.1")
    api.leases.measured["box-gpu0"] = [
        Measured(4.04, READING | {"gpu": GPU}),
        Measured(9.0, READING | {"gpu_error": "GPU is lost"}),
        Measured(400.0, {"warm": []}),
    ]


def test_the_history_is_returned_with_units(operator: Account) -> None:
    answer = operator.client.get(URL)
    assert answer.status_code == 200, answer.content
    body = answer.json()
    assert (body["server"], body["machine"], body["seconds"]) == ("box-gpu0", "box", 300)
    latest, before = body["samples"]
    assert latest == {
        "age_seconds": 4.0,
        "measured_at": "2023-11-14T22:13:20.500000Z",
        "warm_models": ["flux"],
        "cpus": 16,
        "cpu_percent": 12.5,
        "ram_used_mb": 2048,
        "ram_total_mb": 4096,
        "models_ram_mb": 700,
        "gpu": {
            "utilisation_percent": 87.0,
            "memory_used_mb": 8192.0,
            "memory_total_mb": 16384.0,
            "temperature_celsius": 61,
            "power_watts": 250.0,
            "ecc_errors": 0,
            "throttled": ["hardware thermal"],
            "xids": [{"xid": 31, "times": 2}],
            "processes": [{"pid": 77, "memory_mb": 8000.0}, {"pid": 78, "memory_mb": None}],
        },
        "gpu_error": "",
    }
    assert (before["gpu"], before["gpu_error"]) == (None, "GPU is lost")


def test_the_history_covers_the_requested_seconds(operator: Account) -> None:
    def ages(query: str) -> list[float]:
        return [one["age_seconds"] for one in operator.client.get(f"{URL}?{query}").json()["samples"]]

    assert (ages("seconds=5"), ages("seconds=3600")) == ([4.0], [4.0, 9.0, 400.0])
    oldest = operator.client.get(f"{URL}?seconds=3600").json()["samples"][-1]
    assert (oldest["measured_at"], oldest["cpu_percent"], oldest["gpu"]) == (None, None, None)


@pytest.mark.parametrize("text", ["0", "3601", "-1", "1.5", "x", "", "1e2", "９", "9" * 30])
def test_a_span_that_makes_no_sense_is_refused(operator: Account, text: str) -> None:
    problem(operator.client.get(URL, {"seconds": text}), 400, "invalid_parameter", "/seconds")


def test_a_parameter_that_does_not_exist_is_refused(operator: Account) -> None:
    problem(operator.client.get(f"{URL}?minutes=5"), 400, "unknown_parameter", "/minutes")


def test_a_server_without_telemetry_has_an_empty_history(operator: Account) -> None:
    make_server("http", model=make_model("zimg"))
    body = operator.client.get("/api/v1/admin/servers/http/telemetry").json()
    assert (body["samples"], body["machine"]) == ([], None)


@pytest.mark.parametrize("name", ["nope", "a%20b", "%00"])
def test_a_server_that_is_not_there(operator: Account, name: str) -> None:
    answer = operator.client.get(f"/api/v1/admin/servers/{name}/telemetry")
    problem(answer, 404, "unknown_server", "/server")


def test_without_redis_telemetry_is_unavailable(operator: Account, api: ApiHarness) -> None:
    api.leases.away = True
    answer = operator.client.get(URL)
    problem(answer, 503, "leasing_unavailable")
    assert answer["Retry-After"]


def test_a_day_is_returned_in_summaries_with_units(operator: Account, api: ApiHarness) -> None:
    measures = {"utilisation": Spread(40.04, 0.0, 100.0), "ram_used_mb": Spread(2.0, 1.0, 3.0)}
    api.leases.summaries["box-gpu0"] = [
        Summary(12.04, 2, {}, {}),
        Summary(312.04, 60, measures, {"flux": 3}),
        Summary(90_000.0, 60, measures, {}),
    ]
    body = operator.client.get(URL, {"window": "day"}).json()
    assert (body["seconds"], body["samples"]) == (86_400, [])
    latest, before = body["summaries"]
    assert {name for name, value in latest.items() if value is None} == {*MEASURES}
    assert {name: value for name, value in before.items() if value is not None} == {
        "age_seconds": 312.0,
        "readings": 60,
        "utilisation_percent": {"mean": 40.0, "lowest": 0.0, "highest": 100.0},
        "ram_used_mb": {"mean": 2.0, "lowest": 1.0, "highest": 3.0},
        "loads": [{"model": "flux", "times": 3}],
    }


MEASURES = (
    "utilisation_percent",
    "memory_used_mb",
    "memory_total_mb",
    "temperature_celsius",
    "power_watts",
    "cpu_percent",
    "ram_used_mb",
    "ram_total_mb",
)


def test_an_hour_is_returned_reading_by_reading(operator: Account, api: ApiHarness) -> None:
    api.leases.summaries["box-gpu0"] = [Summary(12.0, 2, {}, {})]
    body = operator.client.get(URL, {"window": "hour"}).json()
    assert (body["seconds"], len(body["samples"]), body["summaries"]) == (3600, 3, [])


def test_a_window_that_does_not_exist_or_has_a_length_too_is_refused(operator: Account) -> None:
    problem(operator.client.get(URL, {"window": "week"}), 400, "invalid_parameter", "/window")
    problem(operator.client.get(URL, {"window": "day", "seconds": "5"}), 400, "invalid_parameter", "/window")
