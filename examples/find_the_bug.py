"""Finding a bug in the port of a model, in one call.

A port is a file that says how a model is wired. This one is of Jamba, a stack of Mamba-1 and
attention layers, and it has a bug: somebody was sure that "dt" is positive already, and left the
softplus out of every Mamba layer but the first. It loads, it runs, it writes text. Only the text is
bad, and nothing says why.

`hybridrt.compare(session, model)` says why. It runs the same tokens through transformers' model,
puts what every module gives beside what ours gives, and names the first layer, tensor and token at
which the two part. The bug is between the last tensor that agrees and the first that doesn't.

It needs transformers, which `pip install hybridrt[test]` brings. The checkpoint is tiny and random,
made here: random weights show a wrong formula as well as trained ones.
Usage: python examples/find_the_bug.py
"""

import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, JambaConfig

import hybridrt
from hybridrt.layers.mamba1 import Mamba1
from hybridrt.models import jamba

CONFIG = JambaConfig(
    vocab_size=100,
    hidden_size=48,
    intermediate_size=72,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_layer_period=4,
    attn_layer_offset=1,
    num_experts=4,
    mamba_d_state=8,
    use_mamba_kernels=False,
    max_position_embeddings=256,
)


class HastyMamba1(Mamba1):
    """Mamba-1 by somebody in a hurry."""

    def _select(self, x):
        dt, B, C = self.x_proj(x).split(
            [self.config.time_step_rank, self.config.state_size, self.config.state_size], dim=-1
        )
        dt, B, C = self.dt_layernorm(dt), self.b_layernorm(B), self.c_layernorm(C)
        return self.dt_proj(dt).float().abs(), B, C  # the bug: abs where softplus should be


class HastyJamba(jamba.Model):
    """Jamba, with the hasty mixer in all Mamba layers but the first."""

    def __init__(self, config):
        super().__init__(config)
        for module in self.model.layers[1:].modules():
            if isinstance(module, Mamba1):
                module.__class__ = HastyMamba1


hybridrt.register_model("hasty_jamba", HastyJamba)


def save_checkpoint(folder):
    """A tiny Jamba, saved by transformers; a second config.json says that it is a hasty one."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG)
    for name, weight in model.named_parameters():
        # As they come, weights are so small that a layer hardly changes the stream.
        if weight.dim() == 2 and not name.endswith("A_log"):
            torch.nn.init.normal_(weight, std=1.5 / weight.shape[1] ** 0.5)
    model.save_pretrained(folder / "right")
    model.save_pretrained(folder / "hasty")
    config = folder / "hasty" / "config.json"
    config.write_text(
        config.read_text().replace('"model_type": "jamba"', '"model_type": "hasty_jamba"')
    )
    return model.eval()


def compare(folder, model):
    """One prompt through both; 20 tokens are plenty."""
    llm = hybridrt.LLM(str(folder), device="cpu", dtype="float32", cache_memory="8MiB")
    with llm.session(list(range(3, 23))) as session:
        return hybridrt.compare(session, model)


transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
with tempfile.TemporaryDirectory() as temporary:
    folder = Path(temporary)
    oracle = save_checkpoint(folder)

    print("1. The port, as it was handed in:\n")
    found = compare(folder / "hasty", oracle)
    print(found)
    assert found.first is not None
    layer, name, token = found.first.layer, found.first.name, found.token
    print(
        f"""
2. How to read it. Rows stand in the order in which they are computed. Layer 0, a Mamba layer, and
layer 1, attention, agree to rounding: the embedding, norms, attention and experts are right there.
In layer {layer} the projection, the convolution and the norms of dt, B and C agree. The first
that doesn't is {name}, from token {token} on. So what is wrong stands between these norms and the
recurrence, and that is how the step is made of dt. All errors behind it follow from this one,
though some are larger.

3. There we look, find abs in the place of softplus, and put it right:
"""
    )
    mended = compare(folder / "right", oracle)
    print(mended)
    assert layer == 2 and mended.equal
