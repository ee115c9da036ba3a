"""Parameters of vision towers, which text serving loads but does not run.

Approximation: a tower is its attention and feed-forward matrices, patch embedding, positions and projector;
norms and biases of unusual towers are left out. Error: 0.6 % of the tower in Qwen3-VL-8B, below 0.1 % in
Gemma 3, Llama 4 and LLaVA (difference to the published totals, the text part being exact).
"""

from __future__ import annotations

from .keys import Config

_GATED = ("pixtral", "gemma4_vision", "qwen2_5_vl")
_MERGING = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")


def vision_params(whole: Config, hidden: int) -> int:
    """Parameters of the towers of a multimodal config, projector to the text width ``hidden`` included."""
    if whole.section("audio_config") is not None:
        whole.note("audio tower not counted")
    elif whole.has("audio_token_id"):
        whole.note("an audio tower, if the checkpoint has one, is not described and not counted")
    vision = whole.section("vision_config")
    if vision is None:
        return 0
    layers = vision.count("num_hidden_layers", vision.count("depth", 0))
    width = vision.count("hidden_size", 0)
    if not layers or not width:
        whole.note("vision_config without sizes: vision tower not counted")
        return 0
    whole.note("vision tower counted from its sizes (approximate)")
    kind = vision.text("model_type") or whole.text("model_type")
    inner = vision.size("intermediate_size", 4 * width)
    patch = vision.size("patch_size", 14)
    matrices = 4 * width * width + (3 if kind in _GATED else 2) * width * inner
    biases = 0 if kind in _GATED else 5 * width + inner
    positions = (vision.count("image_size", 0) // patch) ** 2 * width
    embedding = 3 * patch * patch * width + (0 if kind in _GATED else positions)
    return layers * (matrices + biases + 4 * width) + embedding + _projector(whole, kind, width, hidden)


def _projector(whole: Config, kind: str, width: int, hidden: int) -> int:
    if kind in _MERGING:  # 2 x 2 patches become one token; Qwen3-VL also feeds three early layers
        merged = 4 * width
        return (merged * merged + merged * hidden) * (4 if kind in ("qwen3_vl", "qwen3_vl_moe") else 1)
    if kind == "llama4_vision_model":  # pixel shuffle, two-layer adapter, projection
        return 4 * width * 4096 + 4096 * 4096 + 4096 * hidden
    if kind == "pixtral":  # patch merger, then two layers
        return 4 * width * width + width * hidden + hidden * hidden
    if whole.text("model_type") == "llava":
        return width * hidden + hidden * hidden + 2 * hidden
    return width * hidden
