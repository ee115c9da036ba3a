"""Which models ``decoder`` builds, and the parts of their layers; free of torch."""

from __future__ import annotations

from ..hwmodels.spec import Attention, DenseFFN, LayerGroup, ModelSpec
from .errors import KernelError

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
"""Families that are built: dense, grouped-query attention, norms before each part."""


def parts_of(model: ModelSpec, group: LayerGroup) -> tuple[Attention, DenseFFN, bool]:
    """Return mixer and feed-forward part of a group, and whether each head's queries and keys are normed.

    Raises
    ------
    KernelError : not a model that is built
    """
    mixer, ffn = group.mixer, group.ffn
    plain = (
        model.architecture in ARCHITECTURES
        and model.quantization is None
        and not model.linears
        and isinstance(mixer, Attention)
        and isinstance(ffn, DenseFFN)
        and ffn.gated
        and not (mixer.window or mixer.sinks or mixer.kv_shared)
        and mixer.head_dim == mixer.v_head_dim == model.rotary_dim
    )
    if not plain or not isinstance(mixer, Attention) or not isinstance(ffn, DenseFFN):
        raise KernelError(
            f"{model.id} ({model.architecture}) is not built as a decoder; allowed: dense models in 16 or 32 bit of "
            f"{', '.join(ARCHITECTURES)}, full attention"
        )
    return mixer, ffn, group.norm_params >= 2 * (model.hidden + mixer.head_dim)
