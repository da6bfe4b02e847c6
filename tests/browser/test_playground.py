"""The playground in a browser: conversations, trees, one text, hostile text, a lost server, a phone, no mouse."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from spectr.lm import LM
from spectr.serve.service import Service
from spectr.view import TokenTexts, page

pytestmark = pytest.mark.browser

Visit = Callable[..., Service]
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


def until(what: Callable[[], Any], most: float = 30) -> Any:
    """Wait until something holds."""
    deadline = time.monotonic() + most
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not come to hold within {most} seconds")


def all_of(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def one(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def ask(browser: Any, text: str, count: int = 1, **settings: str) -> None:
    """Send a message and wait for the answer."""
    for name, value in {"max_tokens": "24", **settings}.items():
        script = "const it = document.getElementById(arguments[0]); it.value = arguments[1];"
        browser.execute_script(script, name, value)
    one(browser, "#text").send_keys(text + "\n")
    until(lambda: len(all_of(browser, ".turn.assistant .turn-tools, .turn.error")) >= count)


def quiet(browser: Any) -> None:
    """No error in the console."""
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_conversation(browser: Any, visit: Visit, lm: LM) -> None:
    visit()
    ask(browser, "the quick brown fox", seed="5", temperature="0.8")
    turns = [{"role": "user", "content": "the quick brown fox"}]
    meant = lm.generate(turns, 24, 5, temperature=0.8)
    shown = one(browser, ".turn.assistant > div").get_attribute("textContent")
    assert shown == meant.text
    origins = {span.get_attribute("class").split("from-")[1].split()[0] for span in all_of(browser, ".tok")}
    assert origins <= {"drafter", "correction", "bonus", "plain"}
    assert len(origins) >= 2
    ask(browser, "and then", 2)
    again = all_of(browser, ".turn.assistant")[1].find_elements("css selector", "button")[0]
    before = all_of(browser, ".turn.assistant > div")[1].get_attribute("textContent")
    assert again.text == "Retry, same seed"
    again.click()
    until(lambda: len(all_of(browser, ".turn.assistant .turn-tools")) == 2)
    assert all_of(browser, ".turn.assistant > div")[1].get_attribute("textContent") == before
    all_of(browser, ".turn.user button")[0].click()  # edit the first: what followed goes
    assert len(all_of(browser, ".turn")) == 0
    assert one(browser, "#text").get_attribute("value") == "the quick brown fox"
    quiet(browser)


def test_the_tree_and_its_slider(browser: Any, visit: Visit) -> None:
    visit()
    ask(browser, "one two three", seed="1", max_tokens="9")
    steps = int(one(browser, "#slider").get_attribute("max")) + 1
    assert steps >= 2
    seen = set()
    for at in (0, steps - 1):
        script = "const it = document.getElementById('slider'); it.value = arguments[0];"
        browser.execute_script(f"{script} it.dispatchEvent(new Event('input'));", str(at))
        until(lambda at=at: one(browser, "#step-number").text == f"{at + 1} of {steps}")
        time.sleep(0.5)
        assert len(all_of(browser, "#tree .node.root")) == 1
        assert len(all_of(browser, "#tree .node.added")) == 1
        assert len(all_of(browser, "#tree .edge")) == len(all_of(browser, "#tree .node")) - 1
        for node in all_of(browser, "#tree .node"):
            browser.execute_script(
                "arguments[0].dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))", node
            )
            seen.add(one(browser, "#why").text.split("”")[-1].split(":")[0].strip()[:12])
    assert {"was kept", "was not kept"} & seen or len(seen) >= 3
    one(browser, "#play").click()
    until(lambda: one(browser, "#play").text == "▶" and one(browser, "#step-number").text == f"{steps} of {steps}", 60)
    quiet(browser)


def test_the_tree_belongs_to_the_answer_that_was_clicked(browser: Any, visit: Visit) -> None:
    """A token of an earlier answer shows and marks that answer's step. A new conversation shows no tree."""
    visit()
    ask(browser, "one two three", seed="1", max_tokens="9")
    ask(browser, "and then", 2)
    first, second = all_of(browser, ".turn.assistant")
    first.find_element("css selector", ".tok").click()
    until(lambda: one(browser, "#step-number").text.startswith("1 of "))
    until(lambda: first.find_elements("css selector", ".tok.here"))
    assert second.find_elements("css selector", ".tok.here") == []
    second.find_element("css selector", ".tok").click()
    until(lambda: second.find_elements("css selector", ".tok.here"))
    assert first.find_elements("css selector", ".tok.here") == []
    one(browser, "#clear").click()
    assert all_of(browser, ".turn") == all_of(browser, "#tree .node") == []
    assert (one(browser, "#step-number").text, one(browser, "#step-gain").text, one(browser, "#rate").text) == (
        "–",
        "",
        "",
    )
    quiet(browser)


def test_a_schema_that_is_no_json_is_refused_before_the_message(browser: Any, visit: Visit) -> None:
    visit()
    browser.execute_script("document.getElementById('schema').value = '{'")
    one(browser, "#text").send_keys("one two\n")
    until(lambda: all_of(browser, ".turn.error"))
    assert "is not valid JSON" in one(browser, ".turn.error").text
    assert all_of(browser, ".turn.user") == []
    assert one(browser, "#text").get_attribute("value") == "one two"
    quiet(browser)


def test_same_seed_same_text(browser: Any, visit: Visit) -> None:
    visit()
    one(browser, "#tab-same").click()
    one(browser, "#same-form button").click()
    until(lambda: one(browser, "#same-verdict").text.startswith("Identical:"), 60)
    plain, spec = (one(browser, f"#{name}-text").get_attribute("textContent") for name in ("plain", "spec"))
    assert plain == spec
    assert plain
    assert one(browser, "#plain-rate").text.startswith("1.00 tokens per call")
    quiet(browser)


def test_rules_side_by_side(browser: Any, visit: Visit) -> None:
    visit()
    one(browser, "#tab-rules").click()
    browser.execute_script("document.getElementById('rules-texts').value = '2'")
    one(browser, "#rules-form button").click()
    until(lambda: len(all_of(browser, "#rules-table .bar-fill")) >= 4, 60)
    assert "lossless" in one(browser, "#rules-table").text
    one(browser, "#tab-live").click()
    until(lambda: len(all_of(browser, ".tile")) == 6)
    quiet(browser)


def test_hostile_text_is_text(browser: Any, visit: Visit, lm: LM, page_of: Callable[[str], None]) -> None:
    """What users type, what models say and what servers call themselves is never taken for markup."""
    visit(lm)
    ask(browser, HOSTILE)
    assert one(browser, ".turn.user > div").get_attribute("textContent") == HOSTILE
    until(lambda: one(browser, "#model").text)
    assert browser.execute_script("return window.hacked") is None
    assert len(all_of(browser, ".log img, .log script, .tree img")) == 0
    out = lm.generate(HOSTILE, 12, 3, raw=True, trace=True)

    class Evil(TokenTexts):
        def raw(self, token: int) -> bytes:
            return HOSTILE.encode()

    page_of(page(out.steps, Evil(lm.tokenizer), about=HOSTILE))
    until(lambda: all_of(browser, "#tree .node"))
    assert HOSTILE in one(browser, "#text").get_attribute("textContent")
    assert browser.execute_script("return window.hacked") is None
    assert len(all_of(browser, "main img")) == 0
    quiet(browser)


def test_a_page_of_its_own(browser: Any, lm: LM, page_of: Callable[[str], None], tmp_path: Any) -> None:
    out = lm.generate("naïve café ☕ 漢字", 20, 2, raw=True, trace=True)
    out.save_html(tmp_path / "out.html")
    page_of((tmp_path / "out.html").read_text(encoding="utf-8"))
    assert one(browser, "#text").get_attribute("textContent") == out.text
    assert one(browser, "#step-number").text == f"1 of {len(out.steps)}"
    quiet(browser)


def test_a_lost_server(browser: Any, visit: Visit, lm: LM) -> None:
    service = visit()
    ask(browser, "one")
    browser.execute_script("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    ask(browser, "two", 2)
    assert "cannot be reached" in one(browser, ".turn.error").text
    assert service.lm is lm


def test_a_key_is_asked_for_once(browser: Any, visit: Visit) -> None:
    visit(keys=("the-secret-key",))
    until(lambda: one(browser, "#model").text)
    one(browser, "#text").send_keys("one two\n")
    until(lambda: one(browser, "#key-dialog").is_displayed())
    one(browser, "#key-value").send_keys("the-secret-key")
    one(browser, "#key-dialog button.primary").click()
    until(lambda: all_of(browser, ".turn.assistant .turn-tools"))
    stored = browser.execute_script(
        "return JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])"
    )
    assert stored == '[0,0,""]'


def test_several_calls_share_the_dialog_for_the_key(browser: Any, visit: Visit) -> None:
    """Two texts that begin at once both get the key, and so do the counters, which are read every two seconds."""
    visit(keys=("the-secret-key",))
    until(lambda: one(browser, "#model").text)
    one(browser, "#tab-live").click()
    until(lambda: one(browser, "#key-dialog").is_displayed())
    time.sleep(4.5)  # the time in which two more calls would ask
    one(browser, "#key-dialog button.primary").click()  # with an empty key
    until(lambda: not one(browser, "#key-dialog").is_displayed())
    time.sleep(2.5)
    assert not one(browser, "#key-dialog").is_displayed()
    one(browser, "#tab-same").click()
    one(browser, "#same-form button").click()
    until(lambda: one(browser, "#key-dialog").is_displayed())
    one(browser, "#key-value").send_keys("the-secret-key")
    one(browser, "#key-dialog button.primary").click()
    until(lambda: one(browser, "#same-verdict").text.startswith("Identical:"), 60)
    one(browser, "#tab-live").click()
    until(lambda: len(all_of(browser, ".tile")) == 6)


def test_everything_fits_on_a_phone(browser: Any, visit: Visit) -> None:
    visit()
    browser.set_window_size(400, 850)
    ask(browser, "the quick brown fox jumps over the lazy dog")
    wide, room = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide <= room
    for element in all_of(browser, "main button, main input, main textarea"):
        if element.is_displayed():
            assert element.rect["x"] >= 0
            assert element.rect["x"] + element.rect["width"] <= room + 1
    quiet(browser)


@pytest.mark.slow
def test_without_a_mouse(browser: Any, visit: Visit) -> None:
    from selenium.webdriver.common.keys import Keys

    visit()
    until(lambda: browser.switch_to.active_element.get_attribute("id") == "text")
    browser.switch_to.active_element.send_keys("one two\n")
    until(lambda: all_of(browser, ".turn.assistant .turn-tools"))
    reached = set()
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        reached.add(active.get_attribute("id") or active.get_attribute("class") or active.tag_name)
    assert {"send", "slider", "play", "theme", "tab-chat"} <= reached
    assert any("node" in name for name in reached)
    browser.execute_script("document.getElementById('tab-chat').focus()")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert one(browser, "#view-same").is_displayed()
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('input, select, textarea, button')].filter((it) => !(it.labels?.length ||"
        " it.getAttribute('aria-label') || it.textContent.trim())).map((it) => it.id)"
    )
    assert unnamed == []


STREAM = """
const done = arguments[0], tasks = [];
const note = (list) => tasks.push(...list.getEntries().map((entry) => entry.duration));
new PerformanceObserver(note).observe({ type: "longtask", buffered: false });
import("/play/steps.js").then(async ({ Steps }) => {
  const at = (id) => document.getElementById(id);
  const parts = { slider: at("slider"), play: at("play"), follow: null, number: at("step-number"),
                  gain: at("step-gain"), why: at("why"), tree: at("tree") };
  const steps = new Steps(parts);
  const nodes = [{ token: 0, text: "a", parent: null, draft: null, target: null, accepted: false }];
  for (let id = 1; id < 64; id += 1) {
    nodes.push({ token: id, text: `w${id}`, parent: (id - 1) >> 1, draft: 0.1, target: 0.2, accepted: id < 2 });
  }
  const step = { tokens: [1, 2], bytes: [[97], [98]], origins: ["drafter", "bonus"], accepted: 1, drafted: 63,
                 corrected: false, tree: { nodes, bonus: { parent: 1, token: 2, text: "b", target: 0.5 } } };
  for (let count = 0; count < 1000; count += 1) {
    steps.add(step);
    if (count % 10 === 9) await new Promise((next) => setTimeout(next, 8));
  }
  setTimeout(() => done(Math.max(0, ...tasks)), 300);
});
"""


@pytest.mark.slow
def test_the_page_stays_responsive(browser: Any, visit: Visit) -> None:
    """While a recorded trace of a thousand steps streams, no task of the page takes longer than 50 ms, in the best of a
    few runs: on a busy machine any task may have to wait."""
    visit()
    until(lambda: one(browser, "#model").text)
    assert min(browser.execute_async_script(STREAM) for _ in range(4)) < 50
