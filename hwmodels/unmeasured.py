"""What of a lowered model is timed without a measured lane, in words for whoever reads the result."""

from __future__ import annotations

from .errors import MemboundError
from .lanevariants import lane_or_none
from .lowering import ModelPlan
from .precision import Precision
from .spec import ModelSpec
from .steptypes import StepDevice


def unmeasured(device: StepDevice, lane: str, plan: ModelPlan) -> tuple[str, ...]:
    """Say which number formats of a model are timed by physics alone on a device, one line each.

    Parameters
    ----------
    device : whose lanes count, those that it borrows included
    lane : software lane
    plan : the lowered model
    """
    linears = dict.fromkeys(
        matrix.precision for layer in plan.layers for matrix in layer.linears if matrix.precision.name
    )
    experts = dict.fromkeys(
        layer.moe.precision for layer in plan.layers if layer.moe is not None and layer.moe.precision.name
    )

    def timed(family: str) -> bool:
        return lane_or_none(device, family, lane) is not None

    return (
        *(_linear(precision) for precision in linears if not timed(f"linear_{precision.name}")),
        *(_expert(precision) for precision in experts if not timed(f"moe_{precision.name}")),
        *(_without_units(precision) for precision in dict.fromkeys((*linears, *experts)) if precision.asked),
    )


def refuse_untimed(model: ModelSpec, plan: ModelPlan) -> None:
    """Refuse what the three-term roofline of a TPU has no parameters for."""
    kinds = {
        "mixture-of-experts layers": any(layer.moe is not None for layer in plan.layers),
        "latent attention": any(
            layer.attention is not None and layer.attention.kind == "mla" for layer in plan.layers
        ),
    }
    missing = [name for name, there in kinds.items() if there]
    if missing:
        raise MemboundError(
            f"{model.id}: {' and '.join(missing)} on a TPU (form roofline3) is not built yet; allowed: dense models, "
            "or a GPU"
        )


def _linear(precision: Precision) -> str:
    rate = "0.9 of its compute rate" if not precision.quantises_inputs else f"the {precision.compute} peak"
    return (
        f"linear layers in {precision.name} are an unvalidated lever on this device: no such kernel was measured, they "
        f"are its bf16 lane with {precision.weight_bytes:.3g} B a weight and {rate}"
    )


def _expert(precision: Precision) -> str:
    return (
        f"experts in {precision.name} are an unvalidated lever on this device: no such kernel was measured, they are "
        f"its bf16 lane with {precision.weight_bytes:.3g} B a weight"
    )


def _without_units(precision: Precision) -> str:
    return (
        f"this device has no {precision.asked} matrix units: the weights stay as stored and are multiplied in "
        f"{precision.compute} (weight-only kernels)"
    )
