"""What a board draws: idle, matrix work and memory traffic as shares of its power limit, from ``power.yaml``.

    P = TDP x min(1, idle + compute x FLOP rate / peak + memory x time at the memory's reachable rate)

The firmware holds the board at its limit, hence the minimum; ``idle`` is a board with a server's process on it and
its clocks up, between two kernels as well as between two requests. Shares were fitted where power was measured beside
serving times; other boards take the same shares of their own limit, which nobody has measured, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from .catalog import read_yaml
from .lanes import FittedParameter
from .validation import validate

if TYPE_CHECKING:
    from .device import DeviceProfile
    from .timing.form import Array

POWER = Path(__file__).parent / "power.yaml"
TRANSFERRED_SPREAD = 0.25
"""Half width of the 90 % interval on a board whose power was not measured: assumed, for want of a second one."""


class PowerShares(BaseModel):
    """Fitted shares of one board's power limit.

    Attributes
    ----------
    idle, compute, memory : share drawn by the idle board; more at the matrix units' peak; more at full memory traffic
    spread : half width of the central nine tenths of measured over predicted power, of settings left out
    source, run : what was measured, and where
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    idle: FittedParameter
    compute: FittedParameter
    memory: FittedParameter
    spread: float = Field(gt=0)
    source: str
    run: str


class PowerTable(BaseModel):
    """All fitted boards, by device id."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    boards: dict[str, PowerShares]


@dataclass(frozen=True, slots=True)
class PowerModel:
    """What one board draws.

    Attributes
    ----------
    limit_w : board power limit [W]
    idle, compute, memory : shares of it, as in `PowerShares`
    level : ``measured`` on this board, or ``transferred``
    spread : half width of the 90 % interval of its mean power, relative
    source : whose shares they are
    """

    limit_w: float
    idle: float
    compute: float
    memory: float
    level: Literal["measured", "transferred"]
    spread: float
    source: str

    def above_idle_s(self, seconds: Array, tensor_active_s: Array, dram_active_s: Array) -> Array:
        """Return what steps draw above the idle board, in seconds at the power limit.

        Parameters
        ----------
        seconds : duration of each step, shape (steps,) [s]
        tensor_active_s, dram_active_s : matrix work over its peak, memory traffic at its reachable rate, shape (steps,)
            [s]
        """
        asked = self.compute * tensor_active_s + self.memory * dram_active_s
        return np.minimum(asked, (1.0 - self.idle) * seconds)

    def joule(self, wall_s: float, above_idle_s: float) -> float:
        """Return the energy of one board that was on for ``wall_s`` [J]."""
        return self.limit_w * (self.idle * wall_s + above_idle_s)


@lru_cache(maxsize=1)
def boards() -> dict[str, PowerShares]:
    """Return the fitted boards by device id."""
    return validate(PowerTable, read_yaml(POWER, "power"), "power", str(POWER)).boards


def power_model(device: DeviceProfile) -> PowerModel | None:
    """Return the power model of a device: its own, or another board's shares of its limit; None without a limit.

    A what-if's shares are its base's: a board with faster memory draws what memory draws, times its new limit.
    """
    limit_w = device.tdp_w
    if limit_w is None:
        return None
    known = boards()
    name = device.id if device.id in known else next(iter(known))
    shares, own = known[name], name == device.id and not device.whatif
    return PowerModel(
        limit_w=limit_w,
        idle=shares.idle.value,
        compute=shares.compute.value,
        memory=shares.memory.value,
        level="measured" if own else "transferred",
        spread=shares.spread if own else TRANSFERRED_SPREAD,
        source=f"power of {name}, {shares.source}" if own else f"shares of the power limit as on {name}",
    )
