import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hybridrt.engine.weights import checkpoint_dtype, load_weights

CPU = torch.device("cpu")


class Experts(nn.Module):
    """Experts in one parameter, as checkpoints of both kinds store them."""

    def __init__(self, num_experts: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(num_experts, 2 * inner, hidden))
        self.inner = inner

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        gate, up = self.gate_up.split(self.inner, dim=1)
        split = {f"experts.{e}.gate_proj.weight": gate[e] for e in range(len(gate))}
        split |= {f"experts.{e}.up_proj.weight": up[e] for e in range(len(up))}
        return [{"experts.gate_up_proj": self.gate_up}, split]


class Qkv(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3 * hidden, hidden))

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        return [{f"{n}_proj.weight": w for n, w in zip("qkv", self.weight.chunk(3), strict=True)}]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"qkv_proj": Qkv(4)})
        self.mlp = nn.ModuleDict({"experts": Experts(2, 4, 3)})
        self.A_log = nn.Parameter(torch.empty(4, dtype=torch.float32))
        self.register_buffer("bias", torch.empty(4))


class Model(nn.Module):
    checkpoint_renames = ((r"^backbone\.", "model."), (r"\.embeddings\.", ".embed_tokens."))
    ignored_tensors = (r".*\.inv_freq",)

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.model: Any = nn.Module()
        self.model.embed_tokens = nn.Embedding(6, 4)
        self.model.layers = nn.ModuleList([Layer()])
        self.lm_head = nn.Linear(4, 6, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


def on_meta(dtype: torch.dtype = torch.float32, tied: bool = True) -> Model:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            return Model(tied)
    finally:
        torch.set_default_dtype(previous)


def weights(stacked: bool = False) -> dict[str, Tensor]:
    layer = "model.layers.0."
    names: dict[str, tuple[int, ...]] = {f"{layer}attention.{n}_proj.weight": (4, 4) for n in "qkv"}
    if stacked:
        names[f"{layer}mlp.experts.gate_up_proj"] = (2, 6, 4)
    else:
        for e in range(2):
            names[f"{layer}mlp.experts.{e}.gate_proj.weight"] = (3, 4)
            names[f"{layer}mlp.experts.{e}.up_proj.weight"] = (3, 4)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (6, 4),
        f"{layer}A_log": (4,),
        f"{layer}bias": (4,),
        **names,
    }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def load(
    folder: Path, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, tied: bool = True
) -> Model:
    save_file(tensors, folder / "model.safetensors")
    model = on_meta(dtype, tied)
    load_weights(model, folder, device=CPU)
    return model


def refusal(folder: Path, tensors: dict[str, Tensor], tied: bool = True) -> str:
    """The error that a checkpoint gives. The model must still be on meta then."""
    save_file(tensors, folder / "model.safetensors")
    model = on_meta(tied=tied)
    with pytest.raises(ValueError) as caught:
        load_weights(model, folder, device=CPU)
    assert all(p.is_meta for p in model.parameters()), "memory was allocated before the check"
    return str(caught.value)


@pytest.mark.parametrize("stacked", [False, True])
def test_every_tensor_finds_its_place(stacked: bool, tmp_path: Path) -> None:
    stored = weights(stacked)
    model = load(tmp_path, stored)
    layer = model.model.layers[0]
    at = "model.layers.0."
    qkv = torch.cat([stored[f"{at}attention.{n}_proj.weight"] for n in "qkv"])
    assert torch.equal(layer.attention["qkv_proj"].weight, qkv)
    assert torch.equal(layer.A_log, stored[f"{at}A_log"])
    assert torch.equal(layer.bias, stored[f"{at}bias"])
    experts = layer.mlp["experts"].gate_up
    if stacked:
        assert torch.equal(experts, stored[f"{at}mlp.experts.gate_up_proj"])
    for e in range(0 if stacked else 2):
        gate, up = (stored[f"{at}mlp.experts.{e}.{n}_proj.weight"] for n in ("gate", "up"))
        assert torch.equal(experts[e], torch.cat([gate, up]))
    assert not any(p.requires_grad or p.is_meta for p in model.parameters())


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    stored = weights()
    index = {}
    for n, name in enumerate(stored):
        index[name] = f"model-{n % 3}.safetensors"
    for file in set(index.values()):
        save_file({name: stored[name] for name in stored if index[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    sharded, single = on_meta(), load(tmp_path / "..", stored)
    load_weights(sharded, tmp_path, device=CPU)
    for name, tensor in single.state_dict().items():
        assert torch.equal(sharded.state_dict()[name], tensor), name


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight", "both"])
def test_tied_embeddings_stay_one_parameter_and_either_name_fills_them(
    name: str, tmp_path: Path
) -> None:
    stored = weights()
    embedding = stored.pop("model.embed_tokens.weight")
    embedding[0, 0] = float("nan")  # equal bytes are equal weights
    names = ["model.embed_tokens.weight", "lm_head.weight"] if name == "both" else [name]
    model = load(tmp_path, stored | {name: embedding.clone() for name in names})
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight.view(torch.int32), embedding.view(torch.int32))


def test_tied_weights_that_differ_are_refused(tmp_path: Path) -> None:
    stored = weights()
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] + 1
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head\.weight' .*their values differ"):
        load_weights(on_meta(), tmp_path, device=CPU)


def test_untied_embeddings_are_two(tmp_path: Path) -> None:
    stored = weights()
    assert "missing (1):\n    lm_head.weight" in refusal(tmp_path, stored, tied=False)
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] + 1
    model = load(tmp_path, stored, tied=False)
    assert torch.equal(model.lm_head.weight, stored["lm_head.weight"])
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


@pytest.mark.parametrize("stored_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_converted_to_the_dtype_of_their_parameter(
    stored_dtype: torch.dtype, dtype: torch.dtype, tmp_path: Path
) -> None:
    stored = {name: tensor.to(stored_dtype) for name, tensor in weights().items()}
    model = load(tmp_path, stored, dtype)
    embedding, a_log = model.lm_head.weight, model.model.layers[0].A_log
    assert embedding.dtype == dtype and a_log.dtype == torch.float32
    assert torch.equal(embedding, stored["model.embed_tokens.weight"].to(dtype))
    assert torch.equal(a_log, stored["model.layers.0.A_log"].float())


def test_names_are_rewritten_and_listed_tensors_ignored(tmp_path: Path) -> None:
    stored = weights()
    renamed = {
        name.replace("model.", "backbone.").replace("embed_tokens", "embeddings"): tensor
        for name, tensor in stored.items()
    }
    renamed["backbone.layers.0.rope.inv_freq"] = torch.arange(4)  # of no dtype that can be loaded
    model = load(tmp_path, renamed)
    assert torch.equal(model.lm_head.weight, stored["model.embed_tokens.weight"])


def test_two_names_for_one_tensor_are_refused(tmp_path: Path) -> None:
    stored = weights()
    stored["backbone.embeddings.weight"] = torch.zeros(6, 4)
    assert "both mean 'model.embed_tokens.weight'" in refusal(tmp_path, stored)


def test_the_error_lists_all_that_is_wrong_by_name(tmp_path: Path) -> None:
    stored = weights()
    at = "model.layers.0."
    del stored["model.embed_tokens.weight"], stored[f"{at}attention.q_proj.weight"]
    stored[f"{at}mlp.experts.1.up_proj.weight"] = torch.zeros(4, 3)
    stored[f"{at}A_log"] = torch.zeros(4, 1)
    stored[f"{at}bias"] = torch.zeros(4, dtype=torch.int8)
    stored["backbone.extra"] = torch.zeros(1)
    stored["zzz"] = torch.zeros(1)
    assert refusal(tmp_path, stored) == "\n".join(
        [
            f"{tmp_path}: the weights do not fit Model:",
            "  missing (2):",
            "    model.embed_tokens.weight or lm_head.weight",
            f"    {at}attention.q_proj.weight",
            "  unexpected (2):",
            "    backbone.extra (read as model.extra)",
            "    zzz",
            "  misshapen (2):",
            f"    {at}A_log is [4, 1], should be [4]",
            f"    {at}mlp.experts.1.up_proj.weight is [4, 3], should be [3, 4]",
            "  of a dtype that can't be loaded (1):",
            f"    {at}bias is I8, should be one of F32, F16, BF16",
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float64, torch.int32])
def test_other_dtypes_are_refused_by_name(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = weights()
    stored["model.embed_tokens.weight"] = torch.zeros(6, 4, dtype=dtype)
    assert "model.embed_tokens.weight is " in refusal(tmp_path, stored)


def test_a_mixture_of_layouts_is_refused(tmp_path: Path) -> None:
    stored = weights()
    stored["model.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(2, 6, 4)
    assert "unexpected (" in refusal(tmp_path, stored)
    del stored["model.layers.0.mlp.experts.gate_up_proj"]
    del stored["model.layers.0.mlp.experts.0.gate_proj.weight"]
    message = refusal(tmp_path, stored)
    assert "missing (1):\n    model.layers.0.mlp.experts.0.gate_proj.weight" in message


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    stored = weights() | {f"extra.{n}": torch.zeros(1) for n in range(77)}
    message = refusal(tmp_path, stored)
    assert "unexpected (77)" in message and "... and 27 more" in message


def test_a_truncated_file_is_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-5])
    model = on_meta()
    with pytest.raises(ValueError, match=r"model\.safetensors: truncated"):
        load_weights(model, tmp_path, device=CPU)
    assert all(p.is_meta for p in model.parameters())


def test_tensors_at_odd_offsets_are_read_right(tmp_path: Path) -> None:
    # The format packs tensors end to end in any order; the header is padded here to be odd.
    names, data, offset = {}, b"", 0
    for name, tensor in weights().items():
        raw = tensor.numpy().tobytes()
        names[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        data, offset = data + raw, offset + len(raw)
    header = json.dumps(names).encode()
    header += b" " * (1 + len(header) % 2)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    model = on_meta()
    load_weights(model, tmp_path, device=CPU)
    assert torch.equal(model.lm_head.weight, weights()["model.embed_tokens.weight"])


def test_a_module_shared_by_two_layers_is_filled_once(tmp_path: Path) -> None:
    with torch.device("meta"):
        model: Any = nn.Module()
        model.first = nn.ModuleDict({"qkv_proj": Qkv(2)})
        model.second = model.first
    stored = {f"first.{n}_proj.weight": torch.randn(2, 2) for n in "qkv"}
    stored |= {f"second.{name[6:]}": tensor.clone() for name, tensor in stored.items()}
    save_file(stored, tmp_path / "model.safetensors")
    load_weights(model, tmp_path, device=CPU)
    assert model.first is model.second
    assert torch.equal(
        model.get_parameter("first.qkv_proj.weight")[:2], stored["second.q_proj.weight"]
    )


def test_a_model_that_is_not_on_meta_is_filled_too(tmp_path: Path) -> None:
    stored = weights()
    save_file(stored, tmp_path / "model.safetensors")
    model = Model()
    load_weights(model, tmp_path, device=CPU)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, stored["model.embed_tokens.weight"])


def test_most_elements_decide_the_checkpoints_dtype(tmp_path: Path) -> None:
    stored = {f"small.{n}": torch.zeros(2) for n in range(5)}
    stored |= {"large": torch.zeros(20, dtype=torch.bfloat16), "ids": torch.arange(99)}
    save_file(stored, tmp_path / "model.safetensors")
    assert checkpoint_dtype(tmp_path) == "bfloat16"
    save_file({"ids": torch.arange(9)}, tmp_path / "model.safetensors")
    assert checkpoint_dtype(tmp_path) is None


def test_progress_goes_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "TTY_COMPATIBLE", "1"
    )  # the bar is gone afterwards, so only a terminal has it
    save_file(weights(), tmp_path / "model.safetensors")
    load_weights(on_meta(), tmp_path, device=CPU, progress=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "loading weights" in captured.err


MEASURE = """
import sys, torch
from pathlib import Path
from torch import nn
from hybridrt.engine.weights import load_weights

def peak():  # ru_maxrss would begin with that of the process that started this one
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

with torch.device("meta"):
    layers = [nn.Linear(2048, 2048, bias=False) for _ in range(12)]
    model = nn.Sequential(*layers).to(eval(sys.argv[2]))
torch.ones(2048, 2048).to(torch.bfloat16)
before = peak()
load_weights(model, Path(sys.argv[1]), device=torch.device("cpu"))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is only there")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peak_memory_is_the_model_and_one_tensor(dtype: torch.dtype, tmp_path: Path) -> None:
    one = 2048 * 2048
    stored = {f"{n}.weight": torch.zeros(2048, 2048) for n in range(12)}
    save_file(stored, tmp_path / "model.safetensors")
    command = [sys.executable, "-c", MEASURE, str(tmp_path), str(dtype)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # Small change for allocator and interpreter; the file is 200 MB.
    assert (
        12 * one * dtype.itemsize - 32 * 2**20
        < grown
        < 12 * one * dtype.itemsize + one * 4 + 16 * 2**20
    )
