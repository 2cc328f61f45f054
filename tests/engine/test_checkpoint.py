import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import save_file

from hybridrt.engine import checkpoint


def write_safetensors(path: Path, header: Any, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(start: int, end: int, dtype: str = "F32", shape: Any = (1,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def write_shards(folder: Path, shards: dict[str, list[str]], index: dict[str, str]) -> None:
    for file, names in shards.items():
        save_file({name: torch.ones(2) for name in names}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_a_folder_is_its_own_location_and_the_network_is_never_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_download", lambda hub_id: pytest.fail("went to the network"))
    assert checkpoint.locate(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert checkpoint.locate("~/model") == tmp_path / "model"


@pytest.mark.parametrize(
    "model",
    [
        "./nowhere",
        "../nowhere",
        "/no/where",
        "~/nowhere",
        "a/b/c",
        "",
        "a b",
        "a\\b",
        "a/..",
        "a/",
        "a--b",
    ],
)
def test_what_can_be_no_hub_id_is_refused_before_the_network(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "_download", lambda hub_id: pytest.fail("went to the network"))
    with pytest.raises(ValueError, match="no such folder"):
        checkpoint.locate(model)


def test_a_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ValueError, match=r"model\.safetensors' is a file"):
        checkpoint.locate(str(file))


def test_a_hub_id_downloads_data_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    asked: dict[str, Any] = {}

    def download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert checkpoint.locate("owner/some-model_1.5") == tmp_path
    assert asked["repo_id"] == "owner/some-model_1.5"
    wanted = [
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
    ]
    others = [
        "pytorch_model.bin",
        "modeling_x.py",
        "a.pt",
        "model.pkl",
        "onnx/model.safetensors",
        "consolidated.safetensors",
        "adapter_model.safetensors",
    ]
    taken = filter_repo_objects(
        wanted + others,
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(taken) == wanted
    assert not asked["local_files_only"]
    assert checkpoint.locate("owner/some-model_1.5", downloaded=True) == tmp_path
    assert asked["local_files_only"]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (errors.HFValidationError("bad id"), ValueError),
        (errors.OfflineModeIsEnabled("offline"), OSError),
        (RuntimeError("connection reset"), OSError),
    ],
)
def test_a_failed_download_names_the_id(
    raised: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def download(repo_id: str, **options: Any) -> str:
        raise raised

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(expected, match=f"owner/name.*{raised}"):
        checkpoint.locate("owner/name")


def test_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "time_step_limit": [0, Infinity]}'
    )
    config = checkpoint.read_config(tmp_path)
    assert config == {"model_type": "llama", "time_step_limit": [0, float("inf")]}
    assert checkpoint.read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert checkpoint.read_generation_config(tmp_path) == {"eos_token_id": [1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "missing"),
        (b'{"model_type": ', "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[1]", "holds a JSON list; should be an object"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_config_is_an_error_that_names_the_file(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"config\.json: .*{message}"):
        checkpoint.read_config(tmp_path)


def test_tensors_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    stored = {
        "b": torch.ones(2, 3),
        "a": torch.ones((), dtype=torch.bfloat16),
        "c": torch.ones(0, 4),
    }
    save_file(stored, file, metadata={"format": "pt"})
    tensors = checkpoint.stored_tensors(tmp_path)
    assert {name: (t.dtype, t.shape, t.num_bytes) for name, t in tensors.items()} == {
        "a": ("BF16", (), 2),
        "b": ("F32", (2, 3), 24),
        "c": ("F32", (0, 4), 0),
    }
    assert all(t.file == file for t in tensors.values())


def test_tensors_of_shards(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write_shards(
        tmp_path,
        {"m-1.safetensors": ["a", "b"], "more/m-2.safetensors": ["c"]},
        {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "more/m-2.safetensors"},
    )
    tensors = checkpoint.stored_tensors(tmp_path)
    assert {name: tensors[name].file.name for name in "abc"} == {
        "a": "m-1.safetensors",
        "b": "m-1.safetensors",
        "c": "m-2.safetensors",
    }


def test_the_hub_caches_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "blobs" / "5d41")
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blobs" / "5d41")
    assert list(checkpoint.stored_tensors(tmp_path / "snapshot")) == ["a"]


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "x/../../secret.safetensors",
        "/etc/secret.safetensors",
        "C:\\secret.safetensors",
        "C:secret.safetensors",
        "..\\secret.safetensors",
        "\\\\host\\share\\secret.safetensors",
        "a\0.safetensors",
        "weights.bin",
        7,
    ],
)
def test_an_index_that_leaves_the_folder_is_refused(shard: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "secret.safetensors")
    write_shards(folder, {}, {"a": shard})
    with pytest.raises(ValueError, match=r"weight_map\['a'\]=.*inside the folder"):
        checkpoint.stored_tensors(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, "model.safetensors"])
def test_a_malformed_index_is_refused(weight_map: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors.index.json"
    file.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=r"index\.json: weight_map should be an object"):
        checkpoint.stored_tensors(tmp_path)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    write_shards(tmp_path, {}, {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    with pytest.raises(ValueError, match=r"missing: \['m-1.safetensors', 'm-2.safetensors'\]"):
        checkpoint.stored_tensors(tmp_path)


def test_an_index_that_is_wrong_about_its_shards_is_refused(tmp_path: Path) -> None:
    index = {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}
    write_shards(tmp_path, {"m-1.safetensors": ["a", "c"], "m-2.safetensors": ["d"]}, index)
    with pytest.raises(
        ValueError, match=r"2 tensors are not where it says: 'b' in m-1.*, 'c' in m-2"
    ):
        checkpoint.stored_tensors(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    index = {"a": "m-1.safetensors", "b": "m-2.safetensors"}
    write_shards(tmp_path, {"m-1.safetensors": ["a"], "m-2.safetensors": ["a", "b"]}, index)
    with pytest.raises(ValueError, match=r"m-2.safetensors: 'a' is in m-1.safetensors too"):
        checkpoint.stored_tensors(tmp_path)


def test_two_checkpoints_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, {"m-1.safetensors": ["a"]}, {"a": "m-1.safetensors"})
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="two checkpoints"):
        checkpoint.weight_files(tmp_path)


def test_an_index_over_the_single_file_is_one_checkpoint(tmp_path: Path) -> None:
    write_shards(tmp_path, {"model.safetensors": ["a"]}, {"a": "model.safetensors"})
    assert list(checkpoint.stored_tensors(tmp_path)) == ["a"]


@pytest.mark.parametrize(
    "pickle", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "m.ckpt"]
)
def test_a_pickle_is_refused_by_name_and_not_opened(pickle: str, tmp_path: Path) -> None:
    (tmp_path / pickle).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ValueError, match=rf"pickles \({pickle}\).*model\.safetensors"):
        checkpoint.weight_files(tmp_path)


def test_a_folder_without_weights_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no weights; should hold model\.safetensors"):
        checkpoint.weight_files(tmp_path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(3), "b": torch.ones(2, dtype=torch.float16)}, file)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            checkpoint.read_header(file)
    file.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="corrupt"):
        checkpoint.read_header(file)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b"\xff\xff\xff\xff",
        {"a": 1},
        {"a": {"dtype": "F32", "shape": [1]}},
        {"a": entry(0, 4, shape="1")},
        {"a": entry(0, 4, shape=[-1])},
        {"a": entry(0, 4, shape=[1.0])},
        {"a": entry(0, 4, shape=[2])},
        {"a": entry(0, 4, dtype="F16")},
        {"a": {**entry(0, 4), "dtype": ["F32"]}},
        {"a": {**entry(0, 4), "data_offsets": [0, 2, 4]}},
        {"a": entry(4, 8)},
        {"a": entry(0, 4), "b": entry(0, 4)},
        {"a": entry(0, 4), "b": entry(2, 6)},
        {"a": entry(0, 4), "b": entry(4, 8)},
        {"a": entry(4, 0, dtype="F99", shape=[])},
        {},
    ],
)
def test_a_corrupt_header_is_an_error_that_names_the_file(header: Any, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_safetensors(file, header, b"\0" * 4)
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        checkpoint.stored_tensors(tmp_path)


def test_importing_this_module_imports_neither_torch_nor_the_hub() -> None:
    code = (
        "import sys, hybridrt.engine.checkpoint\n"
        "assert not {'torch', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_demo_is_the_shipped_model_unless_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (checkpoint.locate("demo") / "config.json").is_file()
    (tmp_path / "demo").mkdir()
    assert checkpoint.locate("demo") == Path("demo")


def test_a_plan_downloads_no_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def download(hub_id: str, *, allow_patterns: list[str], **_: Any) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    checkpoint.locate("owner/name", config_only=True)
    checkpoint.locate("owner/name")
    assert asked[0] == ["config.json"] and "*.safetensors" in asked[1]
