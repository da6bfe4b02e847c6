"""A real browser on a real server: Chromium, driven by Selenium."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.saved import save_model, small_llama, tokenizer

import spectr
from spectr.lm import LM
from spectr.serve import ServerSettings
from spectr.serve.run import background
from spectr.serve.service import Service

_HOW = "browser tests need Chromium and its driver: apt-get install chromium chromium-driver, and pip install selenium"
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900")


@pytest.fixture(scope="session")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LM:
    folder = save_model(small_llama(0, 320), tmp_path_factory.mktemp("shown"), tokenizer())
    return spectr.load(str(folder), "ngram", dtype="float64", nodes=8)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    driver = shutil.which("chromedriver")
    if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip(_HOW)
    webdriver = pytest.importorskip("selenium.webdriver", reason=_HOW)
    options = webdriver.ChromeOptions()
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_script_timeout(30)
    yield made
    made.quit()


@pytest.fixture
def visit(browser: Any, lm: LM) -> Iterator[Callable[..., Service]]:
    """Start a server and open its page; at the end the console must hold no error."""
    with ExitStack() as stack:

        def start(model: LM = lm, **settings: Any) -> Service:
            made = ServerSettings(port=0, name="tiny", **settings)
            url, service = stack.enter_context(background(model, made))
            browser.set_window_size(1280, 900)
            browser.get_log("browser")
            browser.get(f"{url}/")
            return service

        yield start
        browser.get("about:blank")


@pytest.fixture
def page_of(browser: Any, tmp_path: Path) -> Callable[[str], None]:
    """Open a page that is a file."""

    def show(text: str) -> None:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        browser.get_log("browser")
        browser.get(path.as_uri())

    return show
