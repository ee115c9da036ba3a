"""Models as text: a list to choose from, and one taken apart into layers, matrices and caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..hwmodels.kvlayout import KVLayout, kv_layout
from ..hwmodels.params import ParameterCount, parameter_count
from ..hwmodels.spec import (
    FFN,
    Attention,
    DenseFFN,
    LayerGroup,
    Linear,
    Mixer,
    ModelSpec,
    MoEFFN,
    MultiHeadLatentAttention,
    Recurrent,
)
from ..hwmodels.units import format_bytes
from ..hwmodels.weights import weight_bytes
from ..sim.output.output import to_json
from .text import csv_of, gib, labelled, percent, short, table, text_of


def render_models(models: Sequence[ModelSpec], form: str) -> str:
    """Return one line a model: size, layers, and what a token leaves in the KV cache."""
    rows = [_row(model) for model in models]
    if form == "json":
        return to_json(rows)
    if form == "csv":
        return csv_of(rows)
    header = ["model", "params", "active", "GiB", "layers", "mixers", "KV/token", "KV fixed", "longest"]
    lines = table(header, [_cells(row) for row in rows], right=[1, 2, 3, 4, 6, 7, 8])
    notes = [
        "GiB: weights as the checkpoint stores them. KV/token: what each token of a long request adds, in "
        + "the checkpoint's own format; KV fixed: recurrent states and full windows of one request.",
        "Any other model: the path of its config.json. membound models NAME takes one apart.",
    ]
    return text_of([*lines, "", *(line for note in notes for line in labelled("", note))])


def _row(model: ModelSpec) -> dict[str, Any]:
    count, layout = parameter_count(model), kv_layout(model)
    return {
        "id": model.id,
        "architecture": model.architecture,
        "parameters": count.total,
        "active_parameters": count.active,
        "weights_bytes": weight_bytes(model),
        "layers": model.n_layers,
        "mixers": ", ".join(dict.fromkeys(_kind(mixer) for _, mixer in model.mixers())),
        "kv_bytes_per_token": layout.bytes_per_token,
        "kv_fixed_bytes": _fixed_bytes(layout),
        "max_position": model.max_position,
        "dtype": model.dtype,
        "quantization": model.quantization.weights if model.quantization else None,
    }


def _fixed_bytes(layout: KVLayout) -> float:
    """Return what one long request keeps in windows and recurrent states [B].

    Windows hold what the layers that stop growing held when they stopped; blocks and padding are left out.
    """
    bounded = [group for group in layout.groups if group.kind in ("window", "chunked")]
    below = layout.bytes_per_token_below_window - layout.bytes_per_token
    layers = sum(group.layers for group in bounded) or 1
    return layout.state_bytes + below * sum(group.layers * group.window for group in bounded) / layers


def _cells(row: dict[str, Any]) -> list[str | None]:
    return [
        row["id"],
        short(row["parameters"]),
        short(row["active_parameters"]),
        gib(row["weights_bytes"])[:-1],
        str(row["layers"]),
        row["mixers"],
        format_bytes(row["kv_bytes_per_token"]),
        format_bytes(row["kv_fixed_bytes"]) if row["kv_fixed_bytes"] else None,
        f"{row['max_position']:,}",
    ]


def _kind(mixer: Mixer) -> str:
    """Name a sequence mixer in two words."""
    if isinstance(mixer, MultiHeadLatentAttention):
        return "sparse MLA" if mixer.index_head_dim else "MLA"
    if isinstance(mixer, Recurrent):
        return mixer.kind.replace("_", " ")
    if not isinstance(mixer, Attention):
        return "none"
    heads = {1: "MQA", mixer.n_heads: "MHA"}.get(mixer.n_kv_heads, f"GQA {mixer.n_heads}/{mixer.n_kv_heads}")
    bound = ("chunk " if mixer.chunked else "window ") + str(mixer.window) if mixer.window else ""
    return f"{heads} {bound}".rstrip()


def render_model(model: ModelSpec, form: str) -> str:
    """Return everything known of one model; ``csv`` is its list of matrices."""
    count = parameter_count(model)
    matrices = list(_matrices(model))
    if form == "json":
        return to_json({**_row(model), "parameter_count": asdict(count), "matrices": matrices} | _rest(model))
    if form == "csv":
        return csv_of(matrices)
    sizes = [f"{short(count.total)} parameters", f"{short(count.active)} active a token", model.dtype]
    if model.quantization:
        sizes.append(f"{model.quantization.weights} weights ({model.quantization.method})")
    lines = [
        *labelled("", " · ".join([model.id, model.architecture, *sizes])),
        *labelled("longest", f"{model.max_position:,} tokens"),
        *labelled("KV cache", _kv_words(model)),
        *(line for note in model.notes for line in labelled("note", note)),
        "",
        *_parameter_table(count),
        "",
        *table(["layers", "sequence mixer", "feed-forward"], [_layer_row(group) for group in model.layers]),
        "",
        *table(
            ["layers", "matrix", "n", "k", "each", "a layer", "sharded by", "quantized"],
            [
                [
                    row["layers"], row["matrix"], f"{row['n']:,}", f"{row['k']:,}", row["copies"],
                    short(row["parameters"]), row["shard"], "yes" if row["quantized"] else "no",
                ]
                for row in matrices
            ],
            right=[0, 2, 3, 4, 5],
        ),
    ]  # fmt: skip
    return text_of(lines)


def _rest(model: ModelSpec) -> dict[str, Any]:
    return {
        "hidden": model.hidden,
        "vocab": model.vocab,
        "tied_embeddings": model.tied_embeddings,
        "notes": list(model.notes),
    }


def _kv_words(model: ModelSpec) -> list[str]:
    row = _row(model)
    said = [f"{format_bytes(row['kv_bytes_per_token'])} a token"]
    if row["kv_fixed_bytes"]:
        said.append(f"{format_bytes(row['kv_fixed_bytes'])} a request in windows and states")
    longest = row["kv_fixed_bytes"] + row["kv_bytes_per_token"] * model.max_position
    return [*said, f"{format_bytes(longest)} for one request of the longest length"]


def _parameter_table(count: ParameterCount) -> list[str]:
    parts = {name: n for name, n in asdict(count).items() if n and name not in ("total", "active")}
    rows = [[name.replace("_", " "), f"{n:,}", percent(n / count.total)] for name, n in parts.items()]
    rows.append(["total", f"{count.total:,}", ""])
    return table(["part", "parameters", "share"], rows, right=[1, 2])


def _layer_row(group: LayerGroup) -> list[str]:
    return [f"{group.count} x", _mixer_words(group.mixer), _ffn_words(group.ffn)]


def _mixer_words(mixer: Mixer) -> str:
    if isinstance(mixer, Attention):
        width = f"{mixer.head_dim}" + (f"/{mixer.v_head_dim}" if mixer.v_head_dim != mixer.head_dim else "")
        shared = ", KV of an earlier layer" if mixer.kv_shared else ""
        return f"{_kind(mixer)}, {mixer.n_heads} heads of {width}{shared}"
    if isinstance(mixer, MultiHeadLatentAttention):
        return (
            f"{_kind(mixer)}, {mixer.n_heads} heads, latent {mixer.kv_lora_rank} + {mixer.qk_rope_head_dim}"
        )
    if isinstance(mixer, Recurrent):
        return f"{_kind(mixer)}, state {mixer.n_heads} x {mixer.head_dim} x {mixer.state_size}"
    return "none"


def _ffn_words(ffn: FFN) -> str:
    if isinstance(ffn, DenseFFN):
        return f"{ffn.intermediate:,} wide" + (", gated" if ffn.gated else "")
    if isinstance(ffn, MoEFFN):
        shared = f" + shared {ffn.shared_intermediate:,}" if ffn.shared_intermediate else ""
        return f"{ffn.top_k} of {ffn.n_experts} experts, {ffn.intermediate:,} wide{shared}"
    return "none"


def _matrices(model: ModelSpec) -> Iterator[dict[str, Any]]:
    """Yield every matrix of the layers, experts counted."""
    for group in model.layers:
        for linear in group.linears:
            yield _matrix(group, linear, 1)
        if isinstance(group.ffn, MoEFFN):
            for linear in group.ffn.expert_linears:
                yield _matrix(group, linear, group.ffn.n_experts)


def _matrix(group: LayerGroup, linear: Linear, copies: int) -> dict[str, Any]:
    return {
        "layers": group.count,
        "matrix": linear.name,
        "n": linear.n,
        "k": linear.k,
        "copies": copies,
        "parameters": copies * linear.params,
        "shard": linear.shard,
        "quantized": linear.quantized,
    }
