// The conversation: turns, the answer that streams, and what can be done with each.

import { ORIGINS, Pieces } from "./trace.js";

function element(name, classes, text) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function fillLegend(list) {
  const named = Object.entries(ORIGINS).filter(([name]) => name !== "plain");
  list.replaceChildren(...named.map(([name, meaning]) => {
    const item = element("li", `from-${name}`, name);
    item.title = meaning;
    return item;
  }));
}

export class Chat {
  constructor({ api, at, steps, settings }) {
    Object.assign(this, { api, at, steps, settings });
    this.turns = [];
    this.running = null;
    this.shown = null; // the turn whose steps are shown
    this.hint = at("tree").firstElementChild;
    at("ask").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    at("text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    at("stop").addEventListener("click", () => this.running?.abort());
    at("clear").addEventListener("click", () => this.clear());
    at("export").addEventListener("click", () => this.export());
  }

  clear() {
    this.running?.abort();
    this.turns = [];
    this.shown = null;
    this.at("log").replaceChildren();
    this.at("rate").textContent = "";
    this.steps.reset();
    this.at("tree").replaceChildren(this.hint);
  }

  async send() {
    const text = this.at("text").value.trim();
    if (!text || this.running) return;
    try { this.settings(); } catch (error) { this.fail(error); return; }
    this.at("text").value = "";
    this.addUser(text);
    await this.answer();
  }

  addUser(text) {
    const turn = { role: "user", content: text };
    turn.item = element("li", "turn user");
    turn.item.append(element("div", "", text), this.tools(turn, [["Edit", () => this.edit(turn)], ["Copy", () => this.copy(turn)]]));
    this.turns.push(turn);
    this.at("log").append(turn.item);
  }

  tools(turn, buttons) {
    const row = element("div", "turn-tools");
    for (const [name, act] of buttons) {
      const button = element("button", "quiet", name);
      button.type = "button";
      button.addEventListener("click", act);
      row.append(button);
    }
    return row;
  }

  edit(turn) {
    if (this.running) return;
    this.cut(turn);
    this.at("text").value = turn.content;
    this.at("text").focus();
  }

  cut(turn) {
    const from = this.turns.indexOf(turn);
    for (const gone of this.turns.splice(from)) gone.item.remove();
    if (!this.turns.includes(this.shown)) {
      this.shown = null;
      this.steps.reset();
      this.at("tree").replaceChildren(this.hint);
    }
  }

  copy(turn) {
    navigator.clipboard?.writeText(turn.content).catch(() => {});
  }

  async retry(turn, seed) {
    if (this.running) return;
    try { this.settings(); } catch (error) { this.fail(error); return; } // before the answer is gone
    this.cut(turn);
    await this.answer(seed);
  }

  async answer(seed) {
    let body;
    try { body = this.settings(); } catch (error) { this.fail(error); return; }
    if (seed !== undefined) body.seed = seed;
    body.messages = this.turns.filter((turn) => !turn.failed).map(({ role, content }) => ({ role, content }));
    const turn = { role: "assistant", content: "", settings: body, steps: [], seed: body.seed };
    turn.item = element("li", "turn assistant");
    turn.text = element("div", "");
    turn.item.append(turn.text);
    this.turns.push(turn);
    this.at("log").append(turn.item);
    this.shown = turn;
    this.steps.reset();
    this.steps.setFollow(true);
    await this.stream(turn, body);
  }

  async stream(turn, body) {
    this.running = new AbortController();
    this.busy(true);
    const pieces = new Pieces(), start = performance.now();
    let count = 0;
    try {
      for await (const event of this.api.stream("v1/chat/completions", body, this.running.signal)) {
        if (this.running.signal.aborted) throw new DOMException("stopped", "AbortError");
        const choice = event.choices[0];
        if (choice?.delta?.content) turn.content += choice.delta.content;
        for (const step of event.spectr?.trace ?? []) {
          count += step.tokens.length;
          this.show(turn, step, pieces);
        }
        if (event.spectr?.seed !== undefined) Object.assign(turn, { seed: event.spectr.seed, receipt: event.spectr.receipt, metrics: event.metrics });
        const seconds = (performance.now() - start) / 1000;
        this.at("rate").textContent = `${(count / seconds).toFixed(1)} tokens/s · ${(count / Math.max(1, turn.steps.length)).toFixed(2)} tokens per call`;
      }
    } catch (error) {
      if (error.name === "AbortError") turn.stopped = true;
      else this.fail(error, turn);
    }
    this.running = null;
    this.busy(false);
    if (!turn.failed) this.finish(turn);
  }

  // The tokens of a step, each in the colour of its origin. What a stop string cuts off is not shown.
  show(turn, step, pieces) {
    const number = turn.steps.length;
    turn.steps.push(step);
    for (const { text, origin } of pieces.add(step)) {
      const span = element("span", `tok from-${ORIGINS[origin] ? origin : "plain"}`, text);
      span.title = ORIGINS[origin] ?? "";
      span.dataset.step = String(number);
      span.addEventListener("click", () => {
        if (!this.look(turn)) return;
        this.steps.setFollow(false);
        this.steps.show(number);
      });
      turn.text.append(span);
    }
    if (this.shown === turn) this.steps.add(step);
    const log = this.at("log");
    if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
  }

  // Show the steps of a turn; while another turn is answered, the steps of that one stay.
  look(turn) {
    if (this.shown !== turn && this.running) return false;
    if (this.shown !== turn) {
      this.shown = turn;
      this.steps.reset([...turn.steps]);
    }
    return true;
  }

  // Mark the tokens of a step in the turn whose steps are shown.
  mark(number) {
    for (const span of this.at("log").querySelectorAll(".tok.here")) span.classList.remove("here");
    for (const span of this.shown?.item.querySelectorAll(`.tok[data-step="${number}"]`) ?? []) span.classList.add("here");
  }

  finish(turn) {
    if (turn.text.textContent.trim() !== turn.content.trim() && !turn.stopped) this.trim(turn);
    const again = turn.seed === undefined ? [] : [["Retry, same seed", () => this.retry(turn, turn.seed)]];
    const tools = this.tools(turn, [...again, ["Retry, new seed", () => this.retry(turn)], ["Copy", () => this.copy(turn)], ["Show its tree", () => this.look(turn)]]);
    const note = [turn.stopped ? "stopped" : null, turn.seed === undefined ? null : `seed ${turn.seed}`].filter(Boolean).join(" · ");
    tools.append(element("span", "muted", note));
    turn.item.append(tools);
  }

  // The text of the answer is what counts: tokens beyond it (a stop string) are taken away from the end.
  trim(turn) {
    let left = turn.content.length;
    for (const span of [...turn.text.children]) {
      const length = span.textContent.length;
      if (left <= 0) span.remove();
      else if (length > left) span.textContent = span.textContent.slice(0, left);
      left -= length;
    }
  }

  fail(error, turn) {
    const item = turn?.item ?? element("li");
    item.className = "turn error";
    item.setAttribute("role", "alert");
    item.append(element("div", "", error instanceof TypeError ? "The server cannot be reached. Start it again, then retry." : error.message));
    if (turn) {
      turn.failed = true;
      item.append(this.tools(turn, [["Retry", () => this.retry(turn)]]));
    } else this.at("log").append(item);
  }

  busy(is) {
    this.at("send").disabled = is;
    this.at("stop").hidden = !is;
  }

  export() {
    const turns = this.turns.map(({ role, content, seed, settings, receipt, steps }) => ({ role, content, seed, settings, receipt, steps }));
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify({ made_by: "spectr playground", turns }, null, 1)], { type: "application/json" }));
    link.download = "conversation.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}
