"""A page in headless Chromium, asked over its own pipe: what it tells the console, asks the network for, fits into.

The protocol is JSON between zero bytes, on file descriptors 3 (to the browser) and 4 (from it). Tests are skipped where
there is no browser.
"""

import base64
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.viewing.small import CHROMIUM

TROUBLE = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page."""

    console: list[str]
    requests: list[str]
    """Addresses, the page's own first."""
    width: int
    """Of all that is laid out, in pixels: more than the window means that it scrolls sideways."""
    text: str
    picture: bytes
    """PNG of the whole page."""


@dataclass
class Browser:
    """One tab."""

    to: int
    answers: Iterator[dict[str, Any]]
    session: dict[str, str] = field(default_factory=dict)
    heard: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer; what happens meanwhile is kept."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters, **self.session}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        for answer in self.answers:
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found
            self.heard.append(answer)
        raise AssertionError("the browser is gone")

    def look(self, file: Path, width: int) -> Seen:
        """Opens a file in a window of this width."""
        self.heard.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Page.navigate", url=file.as_uri())
        while not any(it.get("method") == "Page.loadEventFired" for it in self.heard):
            self.heard.append(next(self.answers))
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        told = self.ask("Runtime.evaluate", expression="document.body.innerText")["result"]["value"]
        clip = {"x": 0, "y": 0, "width": width, "height": size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        events = [(it["method"], it["params"]) for it in self.heard if "method" in it]
        return Seen(
            console=[json.dumps(facts) for method, facts in events if method in TROUBLE],
            requests=[facts["request"]["url"] for method, facts in events if method == "Network.requestWillBeSent"],
            width=int(size["width"]),
            text=told,
            picture=base64.b64decode(shot),
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page that is open."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str, *, shift: bool = False) -> None:
        """Presses and releases the mouse in the middle of an element."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{found}.scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"{found}.getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for event in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent", type=event, button="left", clickCount=1, modifiers=8 if shift else 0, **at
            )

    def press(self, selector: str, key: str, code: int) -> None:
        """Presses and releases a key in an element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        for event in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=event, key=key, code=key, windowsVirtualKeyCode=code)

    def printed(self) -> bytes:
        """The page that is open, as PDF on A4."""
        return base64.b64decode(self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium here to open the page with")
    hear, to = os.pipe()
    answers, tell = os.pipe()
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
    wiring = [
        (os.POSIX_SPAWN_DUP2, hear, 3),
        (os.POSIX_SPAWN_DUP2, tell, 4),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    process = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=wiring)
    os.close(hear)
    os.close(tell)
    try:
        tab = Browser(to, _messages(answers))
        target = tab.ask("Target.createTarget", url="about:blank")["targetId"]
        session = tab.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab.session["sessionId"] = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.ask(f"{domain}.enable")
        yield tab
    finally:
        os.close(to)
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
        os.close(answers)


def _messages(pipe: int) -> Iterator[dict[str, Any]]:
    rest = b""
    while more := os.read(pipe, 1 << 16):
        *whole, rest = (rest + more).split(b"\0")
        yield from map(json.loads, whole)
