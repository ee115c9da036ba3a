"""The vendor's numbers of one device, each with its source; SI, dense rates, one direction for links."""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from .units import Bytes, Flops, Hertz, PositiveCount, RateBytes, Watts

T = TypeVar("T")
Dtype = Literal["bf16", "fp16", "fp8", "fp4", "int8", "tf32", "fp32"]


class Sourced(BaseModel, Generic[T]):
    """A datasheet value, its source, and whether the value was read there (``checked``) or recalled."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: T
    source: str
    checked: bool = False


class Link(BaseModel):
    """How a device reaches its neighbours in the same node.

    Attributes
    ----------
    type : NVLink4, PCIe, Infinity Fabric, ICI, ...
    bandwidth : summed over the links of one device, one direction [B/s]
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    type: str
    bandwidth: Sourced[RateBytes]


class Datasheet(BaseModel):
    """The vendor's numbers: dense rates, one direction for links.

    Attributes
    ----------
    hbm_capacity : as sold [B]; vendors print GB and mostly mean GiB, so ``usable_memory`` may be larger
    usable_memory : what the driver reports as total (cudaMemGetInfo) [B]
    hbm_type : memory technology
    hbm_bandwidth : one direction, sustained read [B/s]
    peak_flops : dense matrix rate by dtype [FLOP/s]
    n_sm : compute units (SM, CU, TensorCore) [-]
    l2 : last-level cache that all units share [B]
    smem_per_sm : on-chip memory of one compute unit [B]
    boost : boost clock [Hz]
    tdp : board power limit [W]
    link : to the other devices of the node
    pcie : to the host, one direction [B/s]
    c2c : to the host where both are one module and share an address space, one direction [B/s]
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    hbm_capacity: Sourced[Bytes]
    usable_memory: Sourced[Bytes]
    hbm_type: Sourced[str]
    hbm_bandwidth: Sourced[RateBytes]
    peak_flops: dict[Dtype, Sourced[Flops]]
    n_sm: Sourced[PositiveCount]
    l2: Sourced[Bytes] | None = None
    smem_per_sm: Sourced[Bytes] | None = None
    boost: Sourced[Hertz] | None = None
    tdp: Sourced[Watts] | None = None
    link: Link
    pcie: Sourced[RateBytes] | None = None
    c2c: Sourced[RateBytes] | None = None


def sourced_fields(datasheet: Datasheet) -> dict[str, Sourced[object]]:
    """Flatten a datasheet to ``name -> Sourced`` (``peak_flops.bf16``), missing ones left out."""
    flat: dict[str, object] = {name: getattr(datasheet, name) for name in Datasheet.model_fields}
    rates = cast("dict[str, object]", flat.pop("peak_flops"))
    flat |= {f"peak_flops.{dtype}": rate for dtype, rate in rates.items()}
    flat["link.bandwidth"] = cast("Link", flat.pop("link")).bandwidth
    return {name: cast("Sourced[object]", value) for name, value in flat.items() if value is not None}
