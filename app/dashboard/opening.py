"""What a reader sees while the browser loads what draws the pages: the answer in words and where the time goes.

The runs of an address begin as soon as it is opened, and their first picture is drawn here and sent as it is; the
pages find the runs done. Nothing here knows Streamlit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from ...hwmodels.errors import MemboundError
from ...sim.output.views import cause_rows
from ..charts.palette import CAUSE_NAMES, CAUSES
from ..text import percent
from .asked import Base, base_of, other_values, read_address, scenario_of
from .jobs import Kept
from .runs import Answer, answer, hash_of
from .serve import PAGE

if TYPE_CHECKING:
    from ...sim.scenario import Scenario

SCENARIO_VARIABLE = "MEMBOUND_DASHBOARD_SCENARIO"
PATH = "/_opening"
"""Where the first picture is asked for, with the words of the page's address."""
MOST = 2000
"""Requests of a run that is begun before the page asks for it."""
NO_RUN = ("capacity", "calibration")
"""Pages that show no run of the scenario."""
NAMED = 0.06
"""Part of a bar that has room for its share."""
STYLE = """<style>
#opening {position: fixed; inset: 0; z-index: 1000000; overflow: auto; box-sizing: border-box; pointer-events: none;
  padding: 3.2rem clamp(1rem, 3vw, 3rem) 1rem; font: 400 16px/1.6 "Source Sans", system-ui, sans-serif;
  background: #fff; color: #31333f;}
@media (min-width: 768px) {#opening {left: 300px;}}
@media (prefers-color-scheme: dark) {#opening {background: #0e1117; color: #fafafa;}}
#opening h1 {font-size: 2rem; margin: 0 0 1rem; line-height: 1.2;}
#opening section {border: 1px solid #8884; border-radius: .5rem; padding: .9rem 1rem; margin: 0 0 1rem;}
#opening figure {margin: 0; font-size: .8rem; max-width: 50rem;}
#opening figure div {display: flex; align-items: center; margin: .4rem 0;}
#opening figure b {flex: 0 0 1.4rem;}
#opening figure span {height: 1.8rem; color: #fff; font-weight: 600; text-align: center; line-height: 1.8rem;}
#opening i {display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .8em;}
#opening p {opacity: .7;}
</style>"""
ASK = """<script>
  const openingText = fetch("PATH" + location.search, {priority: "high"}).then(told => told.ok ? told.text() : "");
</script>""".replace("PATH", PATH)
"""At the start of the page's head: the picture is asked for before anything else."""
WAITS = "<p>membound is working it out …</p>"
BODY = """<div id="opening" role="status">TEXT</div>
<script>
  (() => {
    const place = document.getElementById("opening");
    const drawn = "[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg, [data-testid=stAlert], " +
      "[data-testid=stApp][data-test-script-state=notRunning] h1";
    const looks = new MutationObserver(() => { if (document.querySelector(drawn)) gone(); });
    const gone = () => { looks.disconnect(); place.remove(); };
    looks.observe(document.getElementById("root"), {subtree: true, childList: true, attributes: true});
    if (typeof openingText !== "undefined")
      openingText.then(text => { if (text) place.innerHTML = text; else gone(); }).catch(gone);
  })();
</script>"""
"""At the end of its body: what stands there until a page has drawn its first chart, or ended without one."""

_kept: Kept[str] = Kept(32)


class Opening:
    """Puts the first picture on the page before anything else is loaded (ASGI).

    Parameters
    ----------
    app : what answers all else
    titles : name of a page in an address -> its title
    """

    def __init__(self, app: Any, titles: Mapping[str, str]) -> None:
        self.app, self.titles = app, titles

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request."""
        path = scope.get("path") if scope["type"] == "http" else None
        if path == PATH:
            from anyio.to_thread import run_sync

            text = await run_sync(picture_of, _address(scope), self.titles)
            await _send(send, 200 if text else 204, (text or "").encode())
        elif path == "/":
            known = picture_of(_address(scope), self.titles, wait=False)
            await self.app(scope, receive, _Changed(send, known))
        else:
            await self.app(scope, receive, send)


def _address(scope: Mapping[str, Any]) -> str:
    return scope.get("query_string", b"").decode("latin-1")


class _Changed:
    """Passes an answer on; a whole page of HTML with what stands there until it is drawn."""

    def __init__(self, send: Any, known: str | None) -> None:
        self.send, self.known = send, known
        self.start: MutableMapping[str, Any] | None = None
        self.body = b""

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """Take a message of the answer."""
        if message["type"] == "http.response.start":
            if message["status"] == 200:
                self.start = message
                return
        elif self.start is not None:
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                page = changed(self.body.decode(), self.known).encode()
                kept = [each for each in self.start["headers"] if each[0].lower() in KEPT_HEADERS]
                await _send(self.send, 200, page, kept)
            return
        await self.send(message)


KEPT_HEADERS = (b"cache-control", b"content-type")


async def _send(send: Any, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    named = list(headers) or [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]
    named.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": named})
    await send({"type": "http.response.body", "body": body})


def changed(page: str, known: str | None) -> str:
    """Return Streamlit's page under the name of this program, with the first picture or a place that waits for it.

    Parameters
    ----------
    page : as Streamlit sends it (HTML)
    known : the picture (HTML); empty: there is none; None: it is being drawn

    >>> changed("<head><title>Streamlit</title></head><body></body>", "")
    '<head><title>membound</title></head><body></body>'
    """
    page = page.replace("<title>Streamlit</title>", "<title>membound</title>", 1)
    if known == "":
        return page
    head = STYLE + (ASK if known is None else "")
    body = BODY.replace("TEXT", WAITS if known is None else known)
    return page.replace("<head>", f"<head>{head}", 1).replace("</body>", f"{body}</body>", 1)


def begin() -> threading.Thread:
    """Begin the runs of the first page and draw its picture, beside all else; return the thread that does."""
    thread = threading.Thread(target=picture_of, args=("", {}), daemon=True)
    thread.start()
    return thread


def picture_of(address: str, titles: Mapping[str, str], *, wait: bool = True) -> str | None:
    """Return the answer to what an address asks, in words and with where the time goes, as HTML.

    It is empty where an address asks for no run, for a long one, or for what cannot be.

    Parameters
    ----------
    address : what stands behind the question mark
    titles : name of a page -> its title
    wait : run what is asked; without it, None where that was not done yet
    """
    given = parse_qs(address, keep_blank_values=True)
    page = given.get(PAGE, [""])[-1]
    base = base_of(os.environ.get(SCENARIO_VARIABLE))
    try:
        asked = scenarios_of(base, given)
        if not asked or any(_count(each) > MOST for each in asked):
            return ""
        name = (page, *map(hash_of, asked))
        drawn = _kept.get(name)
        if drawn is None and not wait:
            return None
        if drawn is None:
            drawn = _kept.keep(name, _drawn([answer(each) for each in asked]))
    except MemboundError:
        return ""  # the page says what is wrong with it
    title = titles.get(page) or next(iter(titles.values()), "")
    return f"<h1>{escape(title)}</h1>{drawn}<p>The levers are being loaded …</p>"


def scenarios_of(base: Base, given: Mapping[str, Sequence[str]]) -> list[Scenario]:
    """Return the scenarios that an address asks for: that of the levers, and on the first page what stands beside it.

    Parameters
    ----------
    given : name -> words, of an address

    Raises
    ------
    ScenarioError : which levers do not go together
    """
    page = given.get(PAGE, ("",))[-1]
    if page in NO_RUN:
        return []
    values = read_address(base, given)[0]
    asked = [values] if page else [values, other_values(base, values, given)]
    return [scenario_of(base, each) for each in asked]


def _count(scenario: Scenario) -> int:
    """Return how many requests a scenario serves; beyond any limit where that is not said."""
    return (scenario.workload.requests if scenario.workload else None) or MOST + 1


def _drawn(found: Sequence[Answer]) -> str:
    """Return what runs say, each with a bar of where its time went; a legend names the colours."""
    named = dict(zip("AB", found, strict=False))
    words = "".join(
        f"<section><b>{name}</b> · {escape(each.summary['verdict']['sentence'])}</section>"
        for name, each in named.items()
    )
    rows = cause_rows({name: each.summary for name, each in named.items()})
    bars = "".join(
        f"<div><b>{name}</b>{''.join(_part(row) for row in rows if row['scenario'] == name)}</div>"
        for name in named
    )
    shown = [cause for cause in CAUSES if any(row["cause"] == cause for row in rows)]
    keys = " ".join(f'<i style="background: {CAUSES[each]}"></i>{CAUSE_NAMES[each]}' for each in shown)
    return f"{words}<figure><figcaption>Share of wall time: {keys}</figcaption>{bars}</figure>"


def _part(row: Mapping[str, Any]) -> str:
    text = percent(row["share"]) if row["share"] > NAMED else ""
    return f'<span style="background: {CAUSES[row["cause"]]}; width: {100 * row["share"]:.3f}%">{text}</span>'
