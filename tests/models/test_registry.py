"""Models from elsewhere: registered by a call, or by the entry point of an installed package."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hybridrt
from hybridrt import models
from hybridrt.models import llama, model_class, qwen3
from hybridrt.models.causal_lm import CausalLM

MODULE = """
from hybridrt.models import llama

class Mine(llama.Model):
    text_config_of = ("mine_and_pictures",)

nothing = 7
"""


class Mine(llama.Model):
    pass


class WithoutConfig(CausalLM):
    pass


class WithWrongConfig(CausalLM):
    Config = dict  # pyright: ignore


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_registered", {})


def put_package(folder: Path, name: str, points: str) -> None:
    """A package as pip leaves it: its module, and what `entry_points.txt` says of it."""
    folder.mkdir(exist_ok=True)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hybridrt.models]\n{points}\n")
    (folder / f"{name}.py").write_text(MODULE)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, points: str) -> None:
    put_package(folder, name, points)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_registered_class_is_the_model_of_its_type() -> None:
    hybridrt.register_model("mine", Mine)
    assert model_class({"model_type": "mine"}) is Mine
    assert model_class({"model_type": "llama"}) is llama.Model
    assert models.registered_model_types() == ("mine",)
    assert "mine" not in models.known_model_types()


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="'llama' is taken by a model of hybridrt"):
        hybridrt.register_model("llama", Mine)
    hybridrt.register_model("mine", Mine)
    with pytest.raises(ValueError, match="'mine' is taken by the class Mine"):
        hybridrt.register_model("mine", qwen3.Model)
    assert model_class({"model_type": "mine"}) is Mine


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(ValueError, match="should be a name"):
        hybridrt.register_model(name, Mine)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (llama, "subclass of hybridrt.models.causal_lm.CausalLM"),
        (llama.Config, "subclass of hybridrt.models.causal_lm.CausalLM"),
        (object(), "subclass of hybridrt.models.causal_lm.CausalLM"),
        (WithoutConfig, "its Config is None; should be a subclass of .*ModelConfig"),
        (WithWrongConfig, "its Config is <class 'dict'>"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"register_model\('mine', .*{message}"):
        hybridrt.register_model("mine", model)
    assert models.registered_model_types() == ()


def test_an_entry_point_is_found_and_imported_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "a", monkeypatch, "one_package", "mine = one_package:Mine")
    assert models.registered_model_types() == ("mine",)
    model_class({"model_type": "llama"})
    assert "one_package" not in sys.modules
    found = model_class({"model_type": "mine"})
    assert found.__module__ == "one_package" and issubclass(found, llama.Model)
    text = {"model_type": "mine_and_pictures", "text_config": {"model_type": "mine"}}
    assert model_class(text) is found
    with pytest.raises(ValueError, match="taken by the entry point mine = one_package:Mine of"):
        hybridrt.register_model("mine", Mine)


def test_a_package_that_is_installed_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "one_package", "mine = one_package:Mine")
    assert models.registered_model_types() == ("mine",)
    put_package(tmp_path, "another_package", "yours = another_package:Mine")
    assert models.registered_model_types() == ("mine", "yours")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("one_package:nothing", "mine = one_package:nothing of one_package: should be a subclass"),
        ("one_package:absent", "can't be imported: .*absent"),
        ("no_such_package:Mine", "can't be imported: No module named 'no_such_package'"),
    ],
)
def test_a_wrong_entry_point_is_refused_by_name(
    value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "one_package", f"mine = {value}")
    with pytest.raises(ValueError, match=message):
        model_class({"model_type": "mine"})


def test_two_packages_that_give_one_name_are_refused_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "a", monkeypatch, "one_package", "mine = one_package:Mine")
    install(tmp_path / "b", monkeypatch, "two_package", "mine = two_package:Mine\nqwen3 = x:Y")
    with pytest.raises(ValueError, match=r"'mine' is taken 2 times: .*two_package.*one_package"):
        model_class({"model_type": "mine"})
    with pytest.raises(ValueError, match=r"'qwen3' is taken 2 times: by hybridrt and by .*x:Y"):
        model_class({"model_type": "qwen3"})
    assert model_class({"model_type": "llama"}) is llama.Model


def test_an_unknown_type_is_told_what_there_is() -> None:
    hybridrt.register_model("mine", Mine)
    with pytest.raises(ValueError, match=r"'other' is not known; .*llama.*; registered are mine"):
        model_class({"model_type": "other"})
    with pytest.raises(ValueError, match="model_type=None is not known"):
        model_class({})


def test_registering_is_public_and_imports_no_torch_before_it_is_called() -> None:
    code = (
        "import sys, hybridrt; hybridrt.register_model; "
        "from hybridrt.models import registered_model_types; registered_model_types(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
