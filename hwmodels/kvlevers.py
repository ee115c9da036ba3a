"""Changes of a model's KV cache that a user can ask for: what is kept of a sequence, and in which layers.

Each is a change of the ``ModelSpec`` before it is lowered and sized, so that reads, writes and capacity follow from
one place. What a model answers afterwards is not simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from .lowering import UnsupportedError
from .spec import Attention, LayerGroup, ModelSpec, MultiHeadLatentAttention


def keep_window(model: ModelSpec, window: int, sinks: int = 0) -> ModelSpec:
    """Return the model with the first ``sinks`` and the latest ``window`` tokens kept in every layer.

    Layers that see fewer tokens already stay as they are.
    Source: StreamingLLM (Xiao et al., ICLR 2024), attention sinks and a sliding window.

    Parameters
    ----------
    window, sinks : tokens kept [tokens]

    Raises
    ------
    UnsupportedError
        The model keeps latents.

    Examples
    --------
    >>> layer = LayerGroup(2, Attention(8, 2, 64, 64), None)
    >>> model = ModelSpec("m", "llama", 512, 1000, 4096, (layer,), False, 512)
    >>> keep_window(model, 1024, 4).layers[0].mixer.window
    1028
    """
    seen = window + sinks

    def kept(mixer: Attention) -> Attention:
        if mixer.window and (mixer.chunked or mixer.window <= seen):
            return mixer
        return replace(mixer, window=seen)

    return _changed(model, kept)


def keep_share(model: ModelSpec, budget: float) -> ModelSpec:
    """Return the model with a share of every sequence's entries kept in every layer, at all times.

    Layers with a window of their own stay as they are.
    Source: H2O (Zhang et al., NeurIPS 2023), heavy hitters and recent tokens under one budget.

    Approximation: what is kept is the share of the tokens so far, to the thousandth; prompts are computed with all of
    their keys and hold the kept share of them from the start.

    Raises
    ------
    UnsupportedError
        The model keeps latents.
    """
    share = Fraction(budget).limit_denominator(1000)
    return _changed(model, lambda mixer: mixer if mixer.window else replace(mixer, kept=share))


def share_layers(model: ModelSpec, every: int) -> ModelSpec:
    """Return the model with the KV of one layer in ``every``, which the layers after it read too.

    Of a group of equal layers every n-th stores, the first included. Reads stay: each layer reads the shared entries.
    Weights stay as well, so it is the cache that shrinks and not the projections.
    Source: cross-layer attention (Brandon et al., 2024).

    Raises
    ------
    UnsupportedError
        The model keeps latents, or has fewer layers.
    """
    _changed(model, lambda mixer: mixer)
    if every > model.n_layers:
        raise UnsupportedError(
            f"kv_cache.cross_layer_sharing {every}: {model.id} has {model.n_layers} layers; allowed: 1 to "
            f"{model.n_layers}"
        )
    layers: list[LayerGroup] = []
    places: list[
        tuple[int, int]
    ] = []  # of each group: where its layers that store are, and those that do not
    for group in model.layers:
        mixer = group.mixer
        storing = -(-group.count // every)
        if not isinstance(mixer, Attention) or mixer.kv_shared or storing == group.count:
            places.append((len(layers), len(layers)))
            layers.append(group)
            continue
        places.append((len(layers), len(layers) + 1))
        layers.append(replace(group, count=storing))
        layers.append(replace(group, count=group.count - storing, mixer=replace(mixer, kv_shared=True)))
    met = [0] * len(model.layers)
    order: list[int] = []
    for index in model.order:
        order.append(places[index][met[index] % every > 0])
        met[index] += 1
    return replace(model, layers=tuple(layers), order=tuple(order))


def _changed(model: ModelSpec, change: Callable[[Attention], Attention]) -> ModelSpec:
    """Return the model with the attention of every layer changed."""
    layers: list[LayerGroup] = []
    for group in model.layers:
        if isinstance(group.mixer, MultiHeadLatentAttention):
            raise UnsupportedError(
                f"kv_cache: {model.id} keeps latents, of which nothing is evicted or shared; "
                "allowed: models with KV heads"
            )
        mixer = group.mixer
        layers.append(replace(group, mixer=change(mixer)) if isinstance(mixer, Attention) else group)
    return replace(model, layers=tuple(layers))
