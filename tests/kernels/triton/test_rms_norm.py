"""The addition and norm of one pass against the two by themselves."""

import pytest
import torch
from torch.nn.functional import rms_norm

Place = tuple[str, torch.dtype]


@pytest.mark.parametrize("size", [1, 37, 256])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("stream", ["same", "float32", "none"])
def test_equals_the_two_by_themselves(place: Place, size: int, offset: float, stream: str) -> None:
    from hybridrt.kernels.triton.rms_norm import add_rms_norm

    device, dtype = place
    draw = torch.Generator().manual_seed(size)
    x, residual = (torch.randn(5, 2 * size, generator=draw)[:, :size] for _ in range(2))
    weight = torch.randn(size, generator=draw).to(device, dtype)
    x, residual = x.to(device, dtype), residual.to(device)
    if stream == "same":
        residual = residual.to(dtype)
    added = None if stream == "none" else residual
    normed, total = add_rms_norm(x, added, weight, 1e-5, offset)
    assert torch.equal(total, x if added is None else x + added)
    factor = offset + weight.float()
    expected = rms_norm(total.float(), (size,), factor, 1e-5)
    assert normed.dtype == dtype
    bound = {torch.float32: 1e-6}.get(dtype, torch.finfo(dtype).eps)
    atol = bound * float(expected.abs().max())
    torch.testing.assert_close(normed.float(), expected, rtol=0, atol=atol)
