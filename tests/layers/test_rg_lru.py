"""RG-LRU against its equations (arXiv 2402.19427), token by token and gate by gate."""

import torch
from torch.nn.functional import gelu

from hybridrt.layers.rg_lru import RecurrentBlock
from tests.harness.bench import alone, random_tokens
from tests.harness.layer_rows import BY_REASON
from tests.harness.random_weights import randomise
from tests.harness.tolerance import assert_close


def test_a_sequence_is_what_the_equations_say() -> None:
    row, x = BY_REASON["RG-LRU"], random_tokens(30, seed=0)
    given = alone(row, x)
    layer = row.make()
    assert isinstance(layer, RecurrentBlock)
    randomise(layer)
    cfg, gates = layer.config, layer.rg_lru
    w_x, w_y = layer.linear_xy.weight.double().chunk(2)
    b_x, b_y = layer.linear_xy.bias.double().chunk(2)
    x = x.double()
    u = torch.cat([torch.zeros(cfg.conv_kernel - 1, cfg.lru_width), x @ w_x.T + b_x])
    taps, out = layer.conv_1d.taps.double(), []
    size = cfg.lru_width // cfg.num_heads
    h = torch.zeros(cfg.lru_width, dtype=torch.float64)
    for t in range(len(x)):
        c = (u[t : t + cfg.conv_kernel].T * taps).sum(-1) + layer.conv_1d.bias.double()
        gate = {}
        for name in ("input", "recurrent"):
            weight = gates.get_parameter(f"{name}_gate_weight").double()
            bias = gates.get_parameter(f"{name}_gate_bias").double()
            parts = [c[n * size : (n + 1) * size] @ weight[n] for n in range(cfg.num_heads)]
            gate[name] = torch.sigmoid(torch.cat(parts) + bias.flatten())
        softplus = torch.log1p(torch.exp(gates.recurrent_param.double()))
        a = torch.exp(-8 * gate["recurrent"] * softplus)
        h = gate["input"] * c if t == 0 else a * h + torch.sqrt(1 - a**2) * gate["input"] * c
        y = gelu(w_y @ x[t] + b_y, approximate="tanh")
        out.append(layer.linear_out.weight.double() @ (h * y) + layer.linear_out.bias.double())
    assert_close(given, torch.stack(out))
