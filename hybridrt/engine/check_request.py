"""Refuses requests that a model can't serve, by the thing that is wrong with them."""

from hybridrt.request import Request


def check_request(request: Request, max_model_len: int, vocab_size: int) -> None:
    """Checks a request's prompt and parameters against a model.

    Raises:
        ValueError: it can't be served; names the value and what would be right.
    """
    name, prompt = f"request {request.request_id!r}", request.prompt_token_ids
    if not prompt:
        raise ValueError(f"{name}: the prompt is empty; it should have at least one token")
    if len(prompt) >= max_model_len:
        raise ValueError(
            f"{name}: the prompt has {len(prompt)} tokens; with max_model_len="
            f"{max_model_len} it should have at most {max_model_len - 1}"
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        wrong = next(t for t in prompt if not 0 <= t < vocab_size)
        raise ValueError(f"{name}: token id {wrong} should be in [0, {vocab_size})")
    _check_params(name, request, vocab_size)


def _check_params(name: str, request: Request, vocab_size: int) -> None:
    params = request.sampling_params
    for field in ("logprobs", "prompt_logprobs"):
        count = getattr(params, field)
        if count is not None and count > vocab_size:
            raise ValueError(f"{name}: {field}={count} should be at most {vocab_size}")
    for field in ("logit_bias", "stop_token_ids"):
        wrong = next((t for t in getattr(params, field) or () if t >= vocab_size), None)
        if wrong is not None:
            raise ValueError(
                f"{name}: {field} has token id {wrong}; it should be below {vocab_size}"
            )
