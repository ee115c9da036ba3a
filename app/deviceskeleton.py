"""A device file to start one's own from: a datasheet that is there, and whose kernels it borrows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..hwmodels.errors import MemboundError

OWN = ("id", "name", "vendor", "arch", "form", "datasheet")
"""Sections of a device file that are the card's and not its kernels'."""
HEAD = """\
# Made from {device}. Put in this card's figures, each with its source; rates are dense, links one way.
# Its kernels are borrowed (transfer_from) until they are timed: membound calibrate measure.
"""


class SkeletonError(MemboundError):
    """A device file that cannot be written."""


def write_skeleton(device: str, path: Path) -> None:
    """Write the datasheet of a device as the file of another one that borrows its kernels.

    Parameters
    ----------
    device : id, alias or path
    path : where to; its name becomes the new device's id

    Raises
    ------
    MemboundError : an unknown device, a file that is there already or cannot be written
    """
    import yaml

    from ..hwmodels.catalog import find
    from ..hwmodels.device import DEVICES, load_device
    from ..hwmodels.plainyaml import plain_yaml

    known = load_device(device)
    data: Any = plain_yaml(find("device", device, DEVICES).read_text(encoding="utf-8"))
    own = {name: data[name] for name in OWN if name in data}
    own |= {
        "id": path.stem,
        "name": path.stem,
        "transfer_from": known.id if known.fitted else known.transfer_from,
    }
    text = yaml.safe_dump(own, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(HEAD.format(device=known.id) + text)
    except FileExistsError:
        raise SkeletonError(f"{str(path)!r} is there already; name another file") from None
    except OSError as error:
        raise SkeletonError(f"{str(path)!r} cannot be written: {error.strerror}") from None
