"""Starting the dashboard's server."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...hwmodels.errors import MemboundError

INSTALL = "pip install 'membound[app]'"
LOOPBACK = "127.0.0.1"
ACCENT = "#366dc9"
"""Blue, as in the charts."""
PAGE = "page"
"""In an address of the first page: the page that is meant."""
TRIED = 20
"""Ports tried after one that is taken."""
READY_S = 20.0
"""How long the address is kept back at most until the first page is at hand [s]."""
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
        "theme.light.primaryColor": ACCENT,
        "theme.dark.primaryColor": ACCENT,
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
    import streamlit as st
    from starlette.middleware import Middleware

    from . import main, opening

    threading.Thread(target=_tell, args=(found, told, opening.begin()), daemon=True).start()
    titles = {name: title for name, (title, _) in main.PAGES.items()}
    middleware = [
        Middleware(ThroughTheFirstPage, pages=list(titles)[1:]),
        Middleware(opening.Opening, titles=titles),
    ]
    app = st.App(main.__file__, middleware=middleware)
    signal.signal(signal.SIGTERM, _leave)
    app.run(config=options(found))


def _leave(number: int, frame: object) -> None:
    """End as Ctrl+C does, so that the processes of a study that is running end too."""
    raise SystemExit(128 + number)


class ThroughTheFirstPage:
    """Sends whoever comes by the link of a later page there by way of the first.

    Streamlit's client looks for its server below the address of the page it was opened with, which fails and is
    complained of in the browser's console; from the first page's address it is found at once.

    Parameters
    ----------
    app : what answers all else
    pages : names of the later pages in an address
    """

    def __init__(self, app: Any, pages: Sequence[str]) -> None:
        self.app = app
        self.pages = {f"/{name}": name for name in pages}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request (ASGI)."""
        name = self.pages.get(scope.get("path", "")) if scope["type"] == "http" else None
        if name is None:
            await self.app(scope, receive, send)
            return
        rest = scope.get("query_string", b"").decode("latin-1")
        target = f"/?{PAGE}={name}{'&' if rest else ''}{rest}"
        headers = [(b"location", target.encode("latin-1")), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _tell(port: int, told: Callable[[str], None], ready: threading.Thread) -> None:
    """Say the address as soon as somebody answers there and has something to show."""
    ready.join(READY_S)
    for _ in range(600):
        with socket.socket() as caller:
            caller.settimeout(1.0)
            if caller.connect_ex((LOOPBACK, port)) == 0:
                told(f"http://{LOOPBACK}:{port}")
                return
        time.sleep(0.1)
