"""Takes the screenshots of the playground for the docs: `python tools/screenshots.py [--model NAME]`.

The script starts the server with the default model, asks it the question below in a real browser, and writes
docs/playground_*.png. It needs Chromium, its driver and selenium.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver

import spectr
from spectr.serve import ServerSettings
from spectr.serve.run import background

DOCS = Path(__file__).resolve().parents[1] / "docs"
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1360,980")
QUESTION = "What causes the tides of the ocean?"


def until(what: Callable[[], Any], most: float = 240) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + most
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit(f"the page did not reach the expected state within {most:.0f} seconds")
        time.sleep(0.2)


def shoot(browser: Any, url: str) -> None:
    """Take a screenshot of every view."""

    def one(selector: str) -> Any:
        return browser.find_element("css selector", selector)

    def save(name: str) -> None:
        time.sleep(0.8)
        browser.save_screenshot(str(DOCS / f"playground_{name}.png"))

    browser.get(f"{url}/")
    until(lambda: one("#model").text)
    browser.execute_script(
        "document.documentElement.dataset.theme = 'light'; document.getElementById('seed').value = '7'; "
        "const slider = document.getElementById('temperature'); slider.value = '0.2'; "
        "slider.dispatchEvent(new Event('input'))"
    )
    one("#text").send_keys(QUESTION + "\n")
    until(lambda: browser.find_elements("css selector", ".turn.assistant .turn-tools"))
    most = int(one("#slider").get_attribute("max"))
    best = max(range(most + 1), key=lambda at: _gain(browser, at))
    _look(browser, best)
    browser.execute_script("document.querySelectorAll('.tree .node.kept')[1]?.focus()")
    save("chat")
    browser.execute_script("document.documentElement.dataset.theme = 'dark'")
    one("#tab-same").click()
    one("#same-form button").click()
    until(lambda: one("#same-verdict").text.startswith(("Identical:", "The texts parted")))
    save("same")
    one("#tab-rules").click()
    one("#rules-form button").click()
    until(lambda: len(browser.find_elements("css selector", "#rules-table .bar-fill")) >= 5)
    save("rules")


def _look(browser: Any, at: int) -> None:
    script = (
        "const it = document.getElementById('slider'); it.value = arguments[0]; it.dispatchEvent(new Event('input'))"
    )
    browser.execute_script(script, str(at))
    time.sleep(0.4)


def _gain(browser: Any, at: int) -> int:
    _look(browser, at)
    return int(browser.find_element("css selector", "#step-gain").text.split()[0])


def main() -> None:
    """Start the server and a browser, and take the screenshots."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    lm = spectr.load(parser.parse_args().model, nodes=16)
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    with background(lm, ServerSettings(port=0, name="smollm2-135m")) as (url, _):
        browser = webdriver.Chrome(options=options)
        shoot(browser, url)
        browser.quit()


if __name__ == "__main__":
    main()
