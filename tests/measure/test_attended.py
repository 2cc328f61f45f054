"""Operations of attention, counted token by token."""

import pytest

from hybridrt.cache.spec import Window
from hybridrt.layers.attention import Attention, AttentionConfig
from hybridrt.layers.mla import MLA, MLAConfig
from hybridrt.measure.attended import attentions, prompt_operations, step_operations
from tests.harness.engines import open_llm


@pytest.mark.parametrize(
    "window", [None, Window(7), Window(7, chunked=True), Window(300), Window(300, chunked=True)]
)
@pytest.mark.parametrize("cached", ["keys", "latents"])
def test_a_token_attends_to_what_it_sees(window: Window | None, cached: str) -> None:
    sizes = {"hidden_size": 8, "num_attention_heads": 3, "window": window}
    if cached == "keys":
        config = AttentionConfig(num_key_value_heads=1, head_dim=16, head_dim_v=8, **sizes)
        layer: Attention | MLA = Attention(config, None)
        in_a_step = in_a_prompt = 16 + 8
    else:
        ranks = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 4}
        layer = MLA(MLAConfig(**sizes, **ranks, v_head_dim=8), None)
        in_a_step, in_a_prompt = 32 + 4 + 32, 16 + 4 + 8
    first = (lambda position: 0) if window is None else window.first_visible
    seen = [position + 1 - first(position) for position in range(100)]
    for context in range(100):
        assert step_operations(layer, context) == 2 * 3 * in_a_step * seen[context]
        assert prompt_operations(layer, context) == 2 * 3 * in_a_prompt * sum(seen[:context])


def test_what_a_selection_attends_to_is_not_counted() -> None:
    """How much is selected isn't known here, and a floor is what nothing can be below."""
    llm = open_llm("deepseek_v32-twelve-of-the-tokens-before")
    assert any(isinstance(module, MLA) for module in llm.engine.model.modules())
    assert list(attentions(llm.engine.model)) == []
