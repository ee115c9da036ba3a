"""Starting the dashboard's server."""

from __future__ import annotations

import os
import socket
import threading
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from ...hwmodels.errors import MemboundError

INSTALL = "pip install 'membound[app]'"
LOOPBACK = "127.0.0.1"
TRIED = 20
"""Ports tried after one that is taken."""
UPLOAD_MB = 20
"""Largest file that a page takes [MB]."""


class DashboardError(MemboundError):
    """A dashboard that cannot be started."""


def check_installed() -> None:
    """Refuse to start without what draws the pages.

    Raises
    ------
    DashboardError : says what to install
    """
    missing = [name for name in ("streamlit", "altair") if find_spec(name) is None]
    if missing:
        raise DashboardError(f"the dashboard needs {' and '.join(missing)}; {INSTALL}")


def free_port(wanted: int) -> int:
    """Return the first free port on loopback from one on; 0 takes any.

    Raises
    ------
    DashboardError : none of the ports tried is free
    """
    for port in range(wanted, min(wanted + TRIED, 65535) + 1):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((LOOPBACK, port))
            except OSError:
                continue
            return int(tried.getsockname()[1])
    raise DashboardError(f"ports {wanted} to {wanted + TRIED} are taken; name another with --port")


def options(port: int) -> dict[str, object]:
    """Return what Streamlit is told: this machine alone, no statistics, no watching of files."""
    return {
        "server.address": LOOPBACK,
        "server.port": port,
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": UPLOAD_MB,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        "logger.hideWelcomeMessage": True,
        "logger.level": "error",
        "runner.magicEnabled": False,
    }


def serve(scenario: Path | None, port: int, store: Path | None, told: Callable[[str], None]) -> None:
    """Serve the dashboard until it is interrupted.

    Parameters
    ----------
    scenario : where the levers start
    port : first port to try
    store : where runs are kept
    told : called with the address once it answers

    Raises
    ------
    DashboardError : no port is free
    """
    found = free_port(port)
    if scenario is not None:
        os.environ["MEMBOUND_DASHBOARD_SCENARIO"] = str(scenario.resolve())
    if store is not None:
        os.environ["MEMBOUND_DASHBOARD_STORE"] = str(store.resolve())
    warnings.filterwarnings("ignore", module="joblib")  # it says of every study that is stopped that it was
    from streamlit.web import bootstrap

    from . import main

    main.load()
    threading.Thread(target=_tell, args=(found, told), daemon=True).start()
    chosen = options(found)
    bootstrap.load_config_options(chosen)
    bootstrap.run(main.__file__, False, [], chosen)


def _tell(port: int, told: Callable[[str], None]) -> None:
    """Say the address as soon as somebody answers there."""
    for _ in range(600):
        with socket.socket() as caller:
            caller.settimeout(1.0)
            if caller.connect_ex((LOOPBACK, port)) == 0:
                told(f"http://{LOOPBACK}:{port}")
                return
        time.sleep(0.1)
