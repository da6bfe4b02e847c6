// The page: views, theme, key, and what the server says of itself.

import { Api } from "./api.js";
import { Chat, fillLegend } from "./chat.js";
import { Live } from "./live.js";
import { Rules } from "./rules.js";
import { Same } from "./same.js";
import { fillRules, readSettings } from "./settings.js";
import { Steps } from "./steps.js";

const at = (id) => document.getElementById(id);

// Several calls may need the key at once: they share one dialog and its answer.
let asking = null;

function askKey() {
  asking ??= new Promise((answered) => {
    const dialog = at("key-dialog");
    dialog.addEventListener("close", () => {
      asking = null;
      api.key = dialog.returnValue === "use" ? at("key-value").value : api.key;
      at("key-value").value = "";
      answered(dialog.returnValue === "use");
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asking;
}

const api = new Api(askKey);
let rules = [];

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

function views() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const open = (tab) => {
    for (const other of tabs) {
      const is = other === tab;
      other.setAttribute("aria-selected", String(is));
      other.tabIndex = is ? 0 : -1;
      at(other.getAttribute("aria-controls")).hidden = !is;
    }
    if (tab.id === "tab-live") live.start(); else live.stop();
  };
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = tabs[(place + move + tabs.length) % tabs.length];
      next.focus();
      open(next);
    });
  });
}

async function greet() {
  const state = at("state");
  try {
    const about = await api.json("play/about");
    at("model").textContent = `${about.model} · ${about.drafter} · ${about.arithmetic.dtype} on ${about.arithmetic.device}`;
    at("key").hidden = !about.needs_key;
    rules = about.rules;
    const chosen = at("rule").value;
    fillRules(at("rule"), rules.filter((rule) => rule.offered && rule.lossless));
    if (chosen) at("rule").value = chosen;
    state.textContent = about.ready ? "ready" : about.reason;
    state.className = `pill ${about.ready ? "good" : "bad"}`;
  } catch {
    state.textContent = "the server cannot be reached";
    state.className = "pill bad";
  }
}

const parts = { slider: at("slider"), play: at("play"), follow: at("follow"), number: at("step-number"), gain: at("step-gain"), why: at("why"), tree: at("tree") };
const steps = new Steps(parts, (number) => chat.mark(number));
const live = new Live(api, at);
const chat = new Chat({ api, at, steps, settings: () => readSettings(at) });
new Same(api, at);
new Rules(api, at, () => rules);
fillLegend(at("legend"));
views();
for (const name of ["temperature", "top_p"]) at(name).addEventListener("input", () => { at(`${name}-value`).textContent = at(name).value; });
at("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
at("key").addEventListener("click", async () => {
  if (await askKey() && !at("view-live").hidden) live.start();
});
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
greet();
setInterval(greet, 5000);
at("text").focus();
