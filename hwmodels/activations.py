"""The activation peak of an engine's profile run: the largest of a forward pass, a sampling and a compilation."""

from __future__ import annotations

from math import ceil

from .memoryrules import MemoryRules
from .spec import FFN, Attention, DenseFFN, ModelSpec, MoEFFN, MultiHeadLatentAttention

ACTIVATION_BYTES = 2
"""Activations are 16-bit whatever the weights are [B]."""
SCORE_ENTRY_BYTES = 6
"""A score while its softmax is taken: 2 in, 4 out [B]."""


def forward_bytes(
    model: ModelSpec, tokens: int, tensor_parallel_size: int = 1, *, expert_parallel: bool = False
) -> int:
    """Return the peak of one forward pass over ``tokens`` tokens [B].

    Approximation: three residual-wide tensors and the widest feed-forward layer's tensors; checked together
    with the other terms on printed sizes of some thirty machines (median error 0.9 % of the pool).

    Parameters
    ----------
    model : the model
    tokens : max_num_batched_tokens [tokens]
    tensor_parallel_size : ranks the feed-forward layers are cut over
    expert_parallel : experts are whole on their rank

    Examples
    --------
    >>> from membound.hwmodels.model import load_model
    >>> round(forward_bytes(load_model("llama-3.1-8b"), 8192) / 2**30, 3)
    0.844
    """
    ffns = {group.ffn for group in model.layers}
    widest = max(
        (_ffn_width(ffn, model.hidden, tensor_parallel_size, expert_parallel) for ffn in ffns), default=0
    )
    return ACTIVATION_BYTES * tokens * (widest + 3 * model.hidden)


def _ffn_width(ffn: FFN, hidden: int, tp: int, expert_parallel: bool) -> int:
    """Elements a token has alive inside a feed-forward layer: the matrices' outputs and the activation's."""
    if isinstance(ffn, DenseFFN):
        return (3 if ffn.gated else 2) * -(-ffn.intermediate // tp)
    if isinstance(ffn, MoEFFN):
        width = ffn.intermediate if expert_parallel else -(-ffn.intermediate // tp)
        return ffn.top_k * (max(2 * width, hidden) + width)
    return 0


def score_bytes(model: ModelSpec, tokens: int, length: int, tensor_parallel_size: int = 1) -> int:
    """Return the score matrices of naive attention at their peak, in the softmax of one layer [B].

    Six bytes for each query head, query and key: scores in 16 bit in, probabilities in 32 bit out. Flash attention
    keeps a tile of them on chip and writes none.

    Parameters
    ----------
    model : the model
    tokens : queries of the largest step [tokens]
    length : keys that they may see, max_model_len [tokens]
    tensor_parallel_size : ranks that the heads are dealt out over

    Examples
    --------
    >>> from membound.hwmodels.model import load_model
    >>> score_bytes(load_model("llama-3.1-8b"), 2048, 8192) == 6 * 32 * 2048 * 8192
    True
    """
    widest = max(
        (
            -(-mixer.n_heads // tensor_parallel_size)
            * min(mixer.window + tokens if mixer.window else length, length)
            for _, mixer in model.mixers()
            if isinstance(mixer, Attention | MultiHeadLatentAttention)
        ),
        default=0,
    )
    return SCORE_ENTRY_BYTES * tokens * widest


def expert_workspace_bytes(
    model: ModelSpec, tokens: int, tensor_parallel_size: int = 1, *, expert_parallel: bool = False
) -> int:
    """Return the workspace that the experts of a layer share with those of all others [B]; 0 without experts.

    Inputs and outputs of both matrices for ``top_k`` copies of each token, the outputs in place of the inputs
    (source: vLLM 0.15.1, ``workspace_shapes`` of the Triton and CUTLASS experts).

    >>> from membound.hwmodels.model import load_model
    >>> expert_workspace_bytes(load_model("mixtral-8x7b"), 8192, 2) == 2 * 8192 * 2 * (7168 + 14336)
    True
    """
    widest = 0
    for ffn in {group.ffn for group in model.layers}:
        if isinstance(ffn, MoEFFN):
            width = ffn.intermediate if expert_parallel else -(-ffn.intermediate // tensor_parallel_size)
            widest = max(
                widest, ffn.top_k * (max(width, model.hidden) + max((1 + ffn.gated) * width, model.hidden))
            )
    return ACTIVATION_BYTES * tokens * widest


def sampler_bytes(model: ModelSpec, rules: MemoryRules, tokens: int, rows: int) -> int:
    """Return the peak of sampling ``rows`` rows after a forward pass over ``tokens`` tokens [B].

    The logits are gathered, so tensor parallelism does not divide them. 0 where the profile run samples none.
    """
    per_entry = rules.sampler_bytes_per_entry(rows)
    if not per_entry:
        return 0
    return ceil(per_entry * rows * model.vocab) + 2 * ACTIVATION_BYTES * tokens * model.hidden
