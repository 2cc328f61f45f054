"""What a layer gets of the last few tokens beside the stream: embeddings of n-grams (Qwen4-Exp).

There are too many n-grams for a row each, so they are hashed, several times, into tables.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hybridrt.batch import ForwardBatch
from hybridrt.cache.spec import INPUTS, CacheSpec, State
from hybridrt.kernels.causal_conv1d import causal_conv1d
from hybridrt.kernels.recent_inputs import recent_inputs
from hybridrt.layers.cached import CachedLayer
from hybridrt.layers.conv import CausalConv1d
from hybridrt.layers.linear import Linear
from hybridrt.layers.ngram_hash import hash_multipliers, primes_from
from hybridrt.layers.norm import GroupedOffsetRMSNorm
from hybridrt.values import Value


class NgramConfig(Value):
    """Sizes, under their Hugging Face names. A token `eos_token_id` ends a text.

    Each of the n-grams of 2 to `ngram_size` tokens has `heads_per_ngram` hashes; all their
    embeddings together have `ple_embed_dim` dimensions. A head's table has a prime number of
    rows, `ngram_vocab_size_base` or more, no two alike in the model.
    """

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    hc_count: PositiveInt
    ple_embed_dim: PositiveInt
    ple_conv_kernel_size: int = Field(4, ge=2)
    ngram_size: int = Field(3, ge=2)
    heads_per_ngram: PositiveInt = 8
    ngram_vocab_size_base: PositiveInt = 20_000_000
    make_ngram_vocab_size_divisible_by: PositiveInt = 128
    split_ngram_parts: PositiveInt = 512
    seed: int = 1234
    eos_token_id: int
    norm_eps: float = 1e-6

    @model_validator(mode="after")
    def _heads_share_dimensions(self) -> "NgramConfig":
        if self.ple_embed_dim % self.num_heads:
            raise ValueError(
                f"ple_embed_dim={self.ple_embed_dim} should be a multiple of {self.num_heads}, "
                "(ngram_size - 1) * heads_per_ngram"
            )
        return self

    @property
    def num_heads(self) -> int:
        """Hashes of a token."""
        return (self.ngram_size - 1) * self.heads_per_ngram


class NgramTable(nn.Module):
    """The tables of all heads, one behind the other, in one matrix."""

    def __init__(self, rows: int, dim: int, parts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, dim), requires_grad=False)
        self.parts = parts

    def checkpoint_layouts(self) -> Sequence[Mapping[str, Tensor]]:
        """In parts of equally many rows, of which the last may have fewer; or as one."""
        shards = enumerate(self.weight.chunk(self.parts))
        whole = {"ngram_embedding.weight": self.weight}
        return [{f"ngram_embedding.shard_{i}.weight": shard for i, shard in shards}, whole]


class NgramEmbedding(nn.Module):
    """The embeddings of the n-grams that end at each token, side by side.

    A hash is the exclusive or of the n-gram's tokens, each times an odd number, modulo the rows
    of the head's table. The numbers follow from the config; those of a checkpoint come first.
    """

    optional_tensors = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
    layer_multipliers: Int64[Tensor, " ngram_size"]
    ngram_heads_vocab_sizes: Int64[Tensor, " heads"]
    ngram_heads_offsets: Int64[Tensor, " heads"]

    def __init__(self, config: NgramConfig, index: int) -> None:
        super().__init__()
        self.config = config
        count, multiple = config.num_heads, config.make_ngram_vocab_size_divisible_by
        sizes = primes_from(config.ngram_vocab_size_base, (index + 1) * count)[-count:]
        offsets = [sum(sizes[:i]) for i in range(count)]
        multipliers = hash_multipliers(config.vocab_size, config.ngram_size, index, config.seed)
        for name, numbers in zip(self.optional_tensors, (multipliers, sizes, offsets), strict=True):
            self.register_buffer(name, torch.tensor(numbers, device="cpu"), persistent=False)
        rows = -(-sum(sizes) // multiple) * multiple
        dim = config.ple_embed_dim // count
        self.ngram_embedding = NgramTable(rows, dim, config.split_ngram_parts)

    def forward(
        self, tokens: Int64[Tensor, "tokens ngram_size"]
    ) -> Float[Tensor, "tokens embed_dim"]:
        """Of each token's last ones, oldest first; what is of no text is `eos_token_id`."""
        products = (tokens.flip(1) * self.layer_multipliers).unbind(1)
        # A checkpoint's number of 0 must not stop the process.
        sizes = self.ngram_heads_vocab_sizes.clamp(min=1).chunk(len(products) - 1)
        mixed, ids = products[0], []
        for product, of_heads in zip(products[1:], sizes, strict=True):
            mixed = mixed ^ product
            ids.append(torch.remainder(mixed[:, None], of_heads))
        rows = torch.cat(ids, dim=1) + self.ngram_heads_offsets
        return F.embedding(rows, self.ngram_embedding.weight).flatten(1)


class NgramInputs(CachedLayer):
    """What is added to all streams: values of the n-grams, each gated by how a stream fits them.

    Behind the gates is a convolution, whose taps are `ngram_size` tokens apart. A page holds its
    last inputs, `conv_state: [(ple_conv_kernel_size - 1) * ngram_size, channels of all streams]`,
    and the last tokens, `token_state: [ngram_size - 1, 1]`, both oldest first.
    """

    mixer = "ngram_inputs"

    def __init__(self, config: NgramConfig, index: int) -> None:
        super().__init__()
        self.config = config
        hidden, eps, count = config.hidden_size, config.norm_eps, config.hc_count
        self.channels = count * hidden
        self.ple_embedding = NgramEmbedding(config, index)
        self.key_proj = Linear(config.ple_embed_dim, self.channels)
        self.value_proj = Linear(config.ple_embed_dim, hidden)
        self.norm_key, self.norm_query, self.norm_conv = (
            GroupedOffsetRMSNorm(self.channels, eps, count) for _ in range(3)
        )
        self.conv1d = CausalConv1d(self.channels, config.ple_conv_kernel_size, bias=False)

    @property
    def cache_spec(self) -> CacheSpec:
        cfg = self.config
        inputs = ((cfg.ple_conv_kernel_size - 1) * cfg.ngram_size, self.channels)
        conv_state = State("conv_state", inputs, self.dtype, axes=INPUTS)
        last = (cfg.ngram_size - 1, 1)
        return CacheSpec(
            "state", (conv_state, State("token_state", last, torch.int64, axes=INPUTS))
        )

    def _bind(self, *views: Tensor) -> None:
        self.conv_state, self.token_state = views

    def forward(
        self, x: Float[Tensor, "tokens streams"], batch: ForwardBatch
    ) -> Float[Tensor, "tokens streams"]:
        count = self.config.hc_count
        embedded = self.ple_embedding(self._last_tokens(batch))
        keys, queries = self.norm_key(self.key_proj(embedded)), self.norm_query(x)
        fit = (keys * queries).unflatten(-1, (count, -1)).sum(-1) * self.config.hidden_size**-0.5
        fit = fit.abs().clamp(min=1e-6).sqrt() * fit.sign()
        values = (fit.sigmoid()[..., None] * self.value_proj(embedded)[:, None]).flatten(1)
        return values + causal_conv1d(
            self.norm_conv(values),
            self._dilated_taps(),
            None,
            self.conv_state,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
            self.state_backend,
        )

    def _dilated_taps(self) -> Float[Tensor, "channels width"]:
        """The convolution's taps with zeros between, so that it is one over every token."""
        taps, apart = self.conv1d.taps, self.config.ngram_size
        width = (taps.shape[1] - 1) * apart + 1
        dilated = taps.new_zeros(len(taps), width)
        dilated[:, ::apart] = taps
        return dilated

    def _last_tokens(self, batch: ForwardBatch) -> Int64[Tensor, "tokens ngram_size"]:
        """Each token and those before it, oldest first; before a text's first, its end token."""
        end = self.config.eos_token_id
        tokens = recent_inputs(
            batch.input_ids[:, None],
            self.token_state,
            batch.state_pages(self.cache_group, self.cache_part),
            batch.initial_state_pages(self.cache_group, self.cache_part),
            batch.for_states,
        )[..., 0]
        back = torch.arange(tokens.shape[1] - 1, -1, -1, device=tokens.device)
        tokens = tokens.masked_fill(back > batch.positions[:, None], end)
        # A text that has ended hides what is before it, but from the end token itself.
        ends = (tokens[:, :-1] == end).flip(1).cumsum(1).flip(1) > 0
        return torch.cat([tokens[:, :-1].masked_fill(ends, end), tokens[:, -1:]], dim=1)
