"""compare: two runs that should be the same, and the first place where they are not."""

import math
import reprlib
from numbers import Real
from typing import Any

from torch import nn

from hybridrt.introspection.compare_sessions import compare_sessions
from hybridrt.introspection.comparison import Comparison


def compare(a: Any, b: Any, *, tolerance: float | None = None) -> Comparison:
    """Finds where a session leaves what it should be: the first layer, tensor and token.

    Args:
        a: a session (`llm.session(...)`), with tokens.
        b: another session, of the same engine or of another with as many cached layers; or
            transformers' model of the same checkpoint, with its logits (AutoModelForCausalLM).
        tolerance: the largest error that is right: an absolute difference as a share of the
            root mean square of what `b` has. None: 1e-4 for float32, 1e-2 for float16 and 5e-2
            for bfloat16, by the coarser side; 5e-2 and 3e-1 with caches in int8 and fp8.

    Between two sessions everything is compared that they have cached of the same tokens, and the
    logits behind the last. Tokens that differ are named first.

    Against transformers' model, one full forward of it is the oracle. The session's tokens are
    computed once more here, in a scratch session that reuses nothing. Then all is compared that
    has the same weights on both sides: the weights, what goes into projections, what modules and
    layers give, logits; and what the session has cached with what transformers' cache holds.

    Raises:
        ValueError: the session has no tokens, requests are on their way, the models have unlike
            layers, or `b` is something else.
        OutOfPages: there is no room for the scratch session.
    """
    if tolerance is not None:
        is_number = isinstance(tolerance, Real) and not isinstance(tolerance, bool)
        if not is_number or not 0 < tolerance < math.inf:
            raise ValueError(f"tolerance={reprlib.repr(tolerance)} should be a positive number")
        tolerance = float(tolerance)
    _check_session(a, "a")
    if isinstance(b, nn.Module):
        from hybridrt.introspection.compare_transformers import compare_transformers

        if not a.token_ids:
            raise ValueError("a has no tokens, so there is nothing to compare; append some first")
        if a.was_written_to:
            raise ValueError(
                "a was written to: what it holds is not what its tokens give; undo the write first"
            )
        return compare_transformers(a, b, tolerance)
    _check_session(b, "b")
    return compare_sessions(a, b, tolerance)


def _check_session(value: Any, name: str) -> None:
    if not (hasattr(value, "layers") and hasattr(value, "token_ids")):
        raise ValueError(
            f"{name} is a {type(value).__name__}; should be a session, as llm.session(...) opens"
            + (", or a model of transformers" if name == "b" else "")
        )
