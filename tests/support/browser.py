"""A real browser without a window: Chromium, by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.support.waiting import until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--mute-audio"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*"),
)
MAX_BYTES = 64 * 1024 * 1024
STOP_SECONDS = 5.0


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; returns its result. What the browser tells meanwhile is dropped."""
        number = next(self._ids)
        await self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(await self._connection.recv())
            if said.get("id") == number:
                assert "error" not in said, said["error"]
                result: dict[str, Any] = said["result"]
                return result

    async def sign_in(self, user: str, password: str) -> None:
        """Sends basic authentication with every request."""
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        await self.send("Network.enable")
        await self.send("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {token}"})

    async def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.send("Emulation.setDeviceMetricsOverride", **metrics)

    async def open(self, url: str) -> None:
        """Goes to a page, and waits until it is loaded."""
        await self.send("Page.navigate", url=url)
        await until(lambda: self.evaluate(f"location.href == {url!r} && document.readyState == 'complete'"), what=url)

    async def evaluate(self, script: str) -> Any:
        """The value of a script's last expression, a promise's included."""
        said = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def text(self, selector: str = "body") -> str:
        """What a person reads there; nothing if it is not there."""
        return str(await self.evaluate(f"(document.querySelector({selector!r}) || {{}}).innerText || ''"))

    async def wait_for(self, text: str, selector: str = "body") -> None:
        async def shown() -> bool:
            return text in await self.text(selector)

        await until(shown, what=f"{text!r} in {selector}")

    async def click(self, selector: str) -> None:
        """Presses the mouse in the middle of an element that can be seen."""
        script = f"""(() => {{
            const box = document.querySelector({selector!r})?.getBoundingClientRect();
            return box && box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
        }})()"""
        x, y = await until(lambda: self.evaluate(script), what=f"{selector} can be seen")
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def picture(self, file: Path) -> None:
        """Writes what is seen to a PNG file."""
        data = (await self.send("Page.captureScreenshot", format="png"))["data"]
        await asyncio.to_thread(file.write_bytes, base64.b64decode(data))


def chromium() -> str:
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    pytest.skip("there is no Chromium")


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A tab of a new browser, which ends with the block. Its profile is in the folder."""
    port_file = folder / "DevToolsActivePort"
    program = [chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = await asyncio.create_subprocess_exec(*program, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    try:
        await until(lambda: port_file.exists() and "\n" in port_file.read_text(), what="Chromium")
        address = f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"
        async with httpx.AsyncClient() as http:
            tabs = (await http.get(f"{address}/json/list")).json()
        url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        async with connect(url, max_size=MAX_BYTES) as connection:
            yield Page(connection)
    finally:
        with suppress(ProcessLookupError, TimeoutError):
            process.terminate()  # its children end with it
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
