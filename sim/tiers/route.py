"""The way of KV blocks between a device and a tier behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...hwmodels.tier import Direction, HostedDevice, TierProfile, transfer_phase

if TYPE_CHECKING:
    from ...hwmodels.steptypes import Phase


@dataclass(frozen=True, slots=True)
class Route:
    """How blocks get to a tier and back.

    Attributes
    ----------
    profile : the kind of tier
    device : whose memory the blocks leave
    block_bytes : one block on one rank [B]
    ranks : tensor-parallel ranks
    """

    profile: TierProfile
    device: HostedDevice
    block_bytes: int
    ranks: int
    _phases: dict[tuple[str, int], Phase] = field(default_factory=dict[tuple[str, int], "Phase"])

    def phase(self, direction: Direction, blocks: int) -> Phase:
        """Return the copy of so many blocks from or to the device, as work."""
        found = self._phases.get((direction, blocks))
        if found is None:
            found = self._phases[direction, blocks] = transfer_phase(
                self.profile, self.device, direction, blocks, self.block_bytes, self.ranks
            )
        return found

    def bytes_of(self, blocks: int) -> int:
        """Bytes of so many blocks on all ranks [B]."""
        return blocks * self.block_bytes * self.ranks
