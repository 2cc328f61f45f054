"""Which rows of a step a package's kernel takes: those that aren't decodes."""

from hybridrt.batch import Rows


def only_decodes(batch: Rows) -> Rows:
    """The decode rows alone: Triton's kernels take them in place, padding among them."""
    n = batch.num_decodes
    return Rows(
        batch.seq_lens[:n],
        batch.cu_seqlens_q[: n + 1],
        batch.has_initial_state[:n],
        batch.query_lens[:n],
        batch.context_lens[:n],
        batch.follows[:n],
        num_decodes=n,
        starts_anew=False,
    )
