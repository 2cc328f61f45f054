"""ssd in plain torch: the chunked matrix form for prefill, the recurrence for decode."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from hybridrt.batch import Rows
from hybridrt.kernels.reference.states import prefill_states, read_states, store_states

LONGEST_CHUNK = 64  # decays between tokens are computed per pair: longer chunks waste time
SMALLEST_LOG = -80.0  # exp gives 2e-35: nothing beside 1, and no slow subnormal number


def ssd(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
) -> Float[Tensor, "tokens heads head_dim"]:
    """See `hybridrt.kernels.ssd`."""
    y = torch.empty_like(x)
    n = batch.num_decodes
    args = (A.float(), B.float(), C.float(), D.float(), ssm_state, pages)
    if n:
        y[:n] = decode(x[:n], dt[:n], *args)
    if n < batch.num_rows:
        prefill(y, x, dt, *args, initial_pages, batch, chunk_size)
    return y


def decode(
    x: Float[Tensor, "decodes heads head_dim"],
    dt: Float[Tensor, "decodes heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
) -> Float[Tensor, "decodes heads head_dim"]:
    """The decode rows' y; they stand first among tokens and rows."""
    n = x.shape[0]
    state = read_states(ssm_state, pages[:n], torch.float32)
    y = _step(x.float(), dt.float(), A, B[:n], C[:n], state)
    store_states(ssm_state, pages[:n], state)
    return torch.addcmul(y, D[:, None], x.float())


def prefill(
    y: Float[Tensor, "tokens heads head_dim"],
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    D: Float[Tensor, " heads"],
    ssm_state: Float[Tensor, "pages heads head_dim state_size"],
    pages: Int64[Tensor, " rows"],
    initial_pages: Int64[Tensor, " rows"],
    batch: Rows,
    chunk_size: int,
) -> None:
    """Writes the prefill rows' part of y."""
    for row, state in prefill_states(ssm_state, pages, initial_pages, batch, torch.float32):
        t = slice(row.start, row.stop)
        xf = x[t].float()
        out, last = _scan(xf, dt[t].float(), A, B[t], C[t], state, chunk_size)
        y[t] = torch.addcmul(out, D[:, None], xf)
        state.copy_(last)


def _step(
    x: Float[Tensor, "rows heads head_dim"],
    dt: Float[Tensor, "rows heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "rows groups state_size"],
    C: Float[Tensor, "rows groups state_size"],
    state: Float[Tensor, "rows heads head_dim state_size"],
) -> Float[Tensor, "rows heads head_dim"]:
    """One step of every row; `state` is changed in place."""
    repeats = x.shape[1] // B.shape[1]
    state.mul_(torch.exp(dt * A)[..., None, None])
    dtx = x * dt[..., None]
    grouped = state.unflatten(1, (-1, repeats))
    grouped.addcmul_(dtx.unflatten(1, (-1, repeats))[..., None], B[:, :, None, None])
    return torch.matmul(grouped.flatten(2, 3), C[..., None]).view_as(x)


def _scan(
    x: Float[Tensor, "tokens heads head_dim"],
    dt: Float[Tensor, "tokens heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "tokens groups state_size"],
    C: Float[Tensor, "tokens groups state_size"],
    state: Float[Tensor, "heads head_dim state_size"],
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """One sequence's chunk of a prefill: its y, and the state behind it.

    Below, c counts chunks, l tokens in a chunk, g groups, r heads of a group. Padding
    tokens have dt = 0: they neither decay a state nor add to it.
    """
    tokens, groups = x.shape[0], B.shape[1]
    length = min(chunk_size, tokens, LONGEST_CHUNK)
    x, dt, B, C = (_chunks(part, length) for part in (x, dt, B, C))
    B, C = B.transpose(1, 2), C.transpose(1, 2)  # c g l n
    log_decay, rounding = _sums((dt * A).unflatten(2, (groups, -1)).permute(0, 2, 3, 1))
    weight = dt * torch.exp(-rounding).permute(0, 3, 1, 2).flatten(2)
    x = (x * weight[..., None]).unflatten(2, (groups, -1)).transpose(1, 2)  # c g l r p

    within = torch.matmul(C, B.transpose(2, 3))[:, :, None] * _decay_between(log_decay)
    y = torch.matmul(within, x.transpose(2, 3)).transpose(2, 3)

    # All heads of a group share B and C, so the rest is one product a group.
    to_end = torch.exp(log_decay[..., -1:] - log_decay + rounding[..., -1:]).transpose(2, 3)
    added = torch.matmul((x * to_end[..., None]).flatten(3).transpose(2, 3), B)
    starts, state = _join(added.unflatten(2, x.shape[3:]), torch.exp(log_decay[..., -1]), state)
    from_start = torch.matmul(C, starts.flatten(2, 3).transpose(2, 3)).unflatten(3, x.shape[3:])
    y = torch.addcmul(y, from_start, torch.exp(log_decay).transpose(2, 3)[..., None])
    y = y * torch.exp(rounding).transpose(2, 3)[..., None]

    y = y.transpose(1, 2).flatten(0, 1).flatten(1, 2)
    return y[:tokens], state


def _chunks(part: Float[Tensor, "  tokens *dims"], length: int) -> Float[Tensor, " c l *dims"]:
    missing = -part.shape[0] % length
    if missing:
        part = pad(part, [0, 0] * (part.dim() - 1) + [0, missing])
    return part.unflatten(0, (-1, length))


def _sums(
    logs: Float[Tensor, "c g r l"],
) -> tuple[Float[Tensor, "c g r l"], Float[Tensor, "c g r l"]]:
    """Running sums in float32, and what their rounding left out.

    A token that forgets everything takes a sum to -1,000 and beyond, where float32 has no
    digits left for the small differences between the tokens behind it.
    """
    exact = logs.double().cumsum(-1)
    sums = exact.float()
    return sums, (exact - sums).float()


def _decay_between(log_decay: Float[Tensor, "c g r l"]) -> Float[Tensor, "c g r l l"]:
    """`exp` of the sum of `dt A` from behind token j up to token i; 0 for j > i."""
    difference = log_decay[..., :, None] - log_decay[..., None, :]
    return difference.clamp_(min=SMALLEST_LOG).exp_().tril_()


def _join(
    added: Float[Tensor, "c g r p n"],
    decay: Float[Tensor, "c g r"],
    state: Float[Tensor, "heads p n"],
) -> tuple[Float[Tensor, "c g r p n"], Float[Tensor, "heads p n"]]:
    """The state at the start of each chunk, and the one behind the last."""
    h = state.view_as(added[0])
    starts: list[Tensor] = []
    for i in range(added.shape[0]):
        starts.append(h)
        h = torch.addcmul(added[i], h, decay[i][..., None, None])
    return torch.stack(starts), h.flatten(0, 1)
