"""Which objects are models, and how they are called."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpu_host.handlers import RunContext
from gpu_host.handlers.code import Declared, ModelCode, declared_by, find_models
from gpu_host.handlers.errors import ContractError

HERE = "tests.gpu_host.handlers"


def test_a_module_is_a_model_whose_load_makes_the_handle():
    (model,) = find_models([f"{HERE}.models"]).values()
    assert model.declared == Declared("module-model", vram_mb=100, at_once=2)
    with pytest.raises(RuntimeError, match="not loaded"):
        model.run(1, RunContext())
    model.load()
    first = model.run(1, RunContext())
    model.unload()
    assert not model.is_loaded
    model.load()
    assert (first[0], model.run(2, RunContext())[0]) == (1, 2)
    assert first[1] != model.run(2, RunContext())[1]


def test_one_module_may_name_several_models():
    models = find_models([f"{HERE}.several"])
    assert list(models) == ["plain", "module", "function"]
    for model in models.values():
        model.load()
    assert models["plain"].run(None, RunContext()) is True
    assert models["function"].run({"a": 1}, RunContext()) == {"a": 1}


def test_a_path_may_carry_its_name():
    assert list(find_models([f"mine={HERE}.models:Plain", f"{HERE}.models:only_payload"])) == [
        "mine",
        "only_payload",
    ]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "no model"),
        (["no.such.module"], "No module named 'no'. Set PYTHONPATH to the folder that contains it"),
        ([f"{HERE}.nothing"], f"No module named '{HERE}.nothing'$"),
        ([f"{HERE}.models:Nothing"], "no attribute"),
        ([HERE], "no function run"),
        ([f"a/b={HERE}.models"], "not a model's name"),
        ([f"a={HERE}.several"], "names its models itself"),
        ([f"a={HERE}.models", f"a={HERE}.models:Plain"], "two models"),
    ],
)
def test_an_invalid_model_is_refused_with_the_reason(paths, words):
    with pytest.raises(ContractError, match=words):
        find_models(paths)


@pytest.mark.parametrize(
    "said",
    [
        {"vram_mb": 0},
        {"vram_mb": "6G"},
        {"max_run_seconds": -1},
        {"at_once": 0},
        {"at_once": True},
        {"warm_seconds": -1},
    ],
)
def test_an_invalid_declaration_is_refused(said):
    with pytest.raises(ContractError):
        declared_by("m", SimpleNamespace(**said))


def test_a_declaration_survives_the_pipe():
    declared = Declared("m", vram_mb=5.0, at_once=3, min_resident=True)
    assert Declared(**declared.as_json()) == declared


def test_an_unload_that_raises_still_drops_the_handle():
    def broken() -> None:
        raise ValueError("no")

    model = ModelCode("m", SimpleNamespace(run=lambda payload: payload, unload=broken))
    model.load()
    with pytest.raises(ValueError, match="no"):
        model.unload()
    assert not model.is_loaded
