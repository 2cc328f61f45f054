"""MiniMax-M3 (arXiv 2606.13392), its text model: attention to blocks that an indexer selects."""

from hybridrt.layers.norm import OffsetRMSNorm
from hybridrt.models import minimax_m2
from hybridrt.models.minimax_m3_config import Config


class Model(minimax_m2.Model):
    """Attention, most of it sparse, and experts behind all but the first layers."""

    Config = Config
    norm_class = OffsetRMSNorm
    checkpoint_renames = (
        *minimax_m2.Model.checkpoint_renames,
        (r"\.self_attn\.index_([qk]_(proj|norm))\.", r".self_attn.indexer.\1."),
    )
    ignored_tensors = (*minimax_m2.Model.ignored_tensors, r"(.*\.)?mtp\..*", r"patch_merge_mlp\..*")
