"""The environment variables of the worker that models see."""

from __future__ import annotations

import pytest

from gpu_host.local.process import model_environment
from tests.support.local_bench import Bench

SECRETS = [
    "FLOWER_BASIC_AUTH",
    "CELERY_BROKER_URL",
    "PGPASSWORD",
    "PGHOST",
    "DISPATCHER_SECRET_KEY",
    "DISPATCHER_ANYTHING_NEW",
    "DJANGO_SECRET_KEY",
    "DATABASE_URL",
    "TEST_DATABASE_URL",
    "REDIS_URL",
    "CREDENTIALS_DIRECTORY",
    "AWS_SECRET_ACCESS_KEY",
    "SSH_AUTH_SOCK",
    "HTTPS_PROXY",
    "KUBECONFIG",
    "ANYTHING_ELSE",
    "HF_TOKEN",
    "HUGGINGFACE_API_KEY",
    "VLLM_API_KEY",
]


@pytest.mark.parametrize("name", SECRETS)
def test_the_dispatchers_variables_stay_with_the_worker(name):
    assert model_environment({name: "s", "PATH": "p"}) == {"PATH": "p"}


@pytest.mark.parametrize(
    "name", ["HF_HOME", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "HOME", "LC_ALL"]
)
def test_variables_of_model_libraries_are_passed_on(name):
    assert model_environment({name: "x"}) == {name: "x"}


def test_an_operator_can_pass_further_variables():
    assert model_environment({"HF_TOKEN": "t", "HF_TOKEN_2": "u"}, ["HF_TOKEN"]) == {"HF_TOKEN": "t"}


def test_a_model_process_has_only_the_allowed_and_given_variables(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    assert bench.gpu.release_memory()
    for name in (*SECRETS, "HF_HOME"):
        monkeypatch.setenv(name, "s")
    seen = bench.wild("environment")
    assert not set(seen) & set(SECRETS)
    assert {"HF_HOME", "TEST_FOLDER", "PATH"} <= set(seen)
    assert bench.gpu.release_memory()
