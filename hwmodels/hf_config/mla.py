"""Latent attention: DeepSeek-V2/V3, Kimi, GLM-5, their sparse indexers, and DeepSeek-V4's compressed form.

Sources: the DeepSeek-V2, V3 and V3.2 reports and the models' published inference code; for V4 the names and
shapes of the published checkpoint's tensors.
"""

from __future__ import annotations

from ..spec import Linear, MultiHeadLatentAttention
from .keys import Config


def latent_attention(config: Config) -> tuple[MultiHeadLatentAttention, int]:
    """One layer of latent attention and the parameters of its small norms.

    ``head_dim`` and ``num_key_value_heads`` of such configs do not size the cache and are not read.
    """
    hidden = config.size("hidden_size")
    n_heads = config.size("num_attention_heads")
    q_rank = config.count("q_lora_rank", 0)
    kv_rank = config.size("kv_lora_rank")
    rope = config.size("qk_rope_head_dim")
    nope = config.size("qk_nope_head_dim")
    value = config.size("v_head_dim")
    query_width = n_heads * (nope + rope)
    if q_rank:
        into = (
            Linear("fused_qkv_a_proj", q_rank + kv_rank + rope, hidden, "replicated"),
            Linear("q_b_proj", query_width, q_rank, "column"),
        )
    else:
        into = (
            Linear("q_proj", query_width, hidden, "column"),
            Linear("kv_a_proj", kv_rank + rope, hidden, "replicated"),
        )
    index_heads, index_dim = config.count("index_n_heads", 0), config.count("index_head_dim", 0)
    indexer: tuple[Linear, ...] = ()
    if index_heads:
        indexer = (
            Linear("indexer_wq_b", index_heads * index_dim, q_rank or hidden, "replicated"),
            Linear("indexer_wk", index_dim, hidden, "replicated"),
            Linear("indexer_weights_proj", index_heads, hidden, "replicated", quantized=False),
        )
    attention = MultiHeadLatentAttention(
        n_heads=n_heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=nope,
        v_head_dim=value,
        index_head_dim=index_dim if index_heads else 0,
        linears=(
            *into,
            Linear("kv_b_proj", n_heads * (nope + value), kv_rank, "column"),
            Linear("o_proj", hidden, n_heads * value, "row"),
            *indexer,
        ),
        index_heads=index_heads,
        index_topk=config.count("index_topk", 0) if index_heads else 0,
    )
    return attention, q_rank + kv_rank + (2 * index_dim if index_heads else 0)


def compressed_attention(config: Config, ratio: int) -> tuple[MultiHeadLatentAttention, int]:
    """One layer of DeepSeek-V4 and the parameters outside its matrices.

    One shared key/value entry of ``head_dim`` per token in the window; beyond it one entry per ``ratio``
    tokens, made by a gated pooling. Where the ratio is 4, it pools overlapping pairs and an indexer picks.
    """
    hidden = config.size("hidden_size")
    n_heads, head_dim = config.size("num_attention_heads"), config.size("head_dim")
    q_rank, rope = config.size("q_lora_rank"), config.size("qk_rope_head_dim")
    groups, o_rank = config.size("o_groups"), config.size("o_lora_rank")
    index_heads, index_dim = config.count("index_n_heads", 0), config.count("index_head_dim", 0)
    overlap = 2 if ratio == 4 else 1
    linears = [
        Linear("fused_qkv_a_proj", q_rank + head_dim, hidden, "replicated"),
        Linear("q_b_proj", n_heads * head_dim, q_rank, "column"),
        Linear("o_a_proj", groups * o_rank, n_heads * head_dim // groups, "column"),
        Linear("o_b_proj", hidden, groups * o_rank, "row"),
    ]
    small = q_rank + head_dim + n_heads  # query and entry norms, sinks
    if ratio:
        linears.append(Linear("compressor", 2 * overlap * head_dim, hidden, "replicated", quantized=False))
        small += ratio * overlap * head_dim + head_dim
    indexed = ratio == 4 and index_heads > 0
    if indexed:
        linears += [
            Linear("indexer_wq_b", index_heads * index_dim, q_rank, "replicated"),
            Linear("indexer_weights_proj", index_heads, hidden, "replicated", quantized=False),
            Linear("indexer_compressor", 2 * overlap * index_dim, hidden, "replicated", quantized=False),
        ]
        small += ratio * overlap * index_dim + index_dim
    attention = MultiHeadLatentAttention(
        n_heads=n_heads,
        q_lora_rank=q_rank,
        kv_lora_rank=head_dim - rope,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=head_dim - rope,
        v_head_dim=head_dim,
        index_head_dim=index_dim if indexed else 0,
        linears=tuple(linears),
        index_heads=index_heads if indexed else 0,
        index_topk=config.count("index_topk", 0) if indexed else 0,
        window=config.size("sliding_window"),
        compress_ratio=ratio,
    )
    return attention, small
