// A slider and a play button over the steps of a text. Only the step that is looked at is drawn, a few times a second.

import { drawTree } from "./tree.js";
import { gain } from "./trace.js";

const PACE = 700; // milliseconds a step while playing
const REST = 120; // milliseconds between two drawings while steps stream in

export class Steps {
  constructor(parts, onShow = () => {}) {
    this.parts = parts;
    this.onShow = onShow;
    this.steps = [];
    this.at = -1;
    this.follows = true;
    this.timer = null;
    this.waiting = false;
    parts.slider.addEventListener("input", () => { this.pause(); this.setFollow(false); this.show(Number(parts.slider.value)); });
    parts.play.addEventListener("click", () => (this.timer === null ? this.play() : this.pause()));
    if (parts.follow) parts.follow.addEventListener("click", () => this.setFollow(!this.follows));
  }

  reset(steps = []) {
    this.pause();
    this.steps = steps;
    this.at = -1;
    this.parts.slider.disabled = this.parts.play.disabled = steps.length === 0;
    this.parts.slider.max = String(Math.max(0, steps.length - 1));
    if (steps.length) this.show(this.follows ? steps.length - 1 : 0);
    else this.clear();
  }

  clear() {
    this.parts.slider.value = "0";
    this.parts.slider.removeAttribute("aria-valuetext");
    this.parts.number.textContent = "–";
    this.parts.gain.textContent = this.parts.why.textContent = "";
    this.parts.tree.replaceChildren();
  }

  add(step) {
    this.steps.push(step);
    this.parts.slider.disabled = this.parts.play.disabled = false;
    this.parts.slider.max = String(this.steps.length - 1);
    if (this.follows || this.at < 0) this.show(this.steps.length - 1);
  }

  setFollow(follows) {
    this.follows = follows;
    if (this.parts.follow) this.parts.follow.setAttribute("aria-pressed", String(follows));
    if (follows && this.steps.length) this.show(this.steps.length - 1);
  }

  show(at) {
    this.at = at;
    if (this.waiting) return;
    this.waiting = true;
    const rest = Math.max(0, REST - (performance.now() - (this.drawn ?? -REST)));
    setTimeout(() => requestAnimationFrame(() => { this.waiting = false; this.draw(); }), rest);
  }

  draw() {
    const step = this.steps[this.at];
    if (!step) return;
    this.drawn = performance.now();
    this.parts.slider.value = String(this.at);
    this.parts.slider.setAttribute("aria-valuetext", `step ${this.at + 1} of ${this.steps.length}`);
    this.parts.number.textContent = `${this.at + 1} of ${this.steps.length}`;
    this.parts.gain.textContent = gain(step);
    this.parts.why.textContent = "";
    if (step.tree) drawTree(this.parts.tree, step, (words) => { this.parts.why.textContent = words; });
    this.onShow(this.at);
  }

  play() {
    if (!this.steps.length) return;
    this.setFollow(false);
    if (this.at >= this.steps.length - 1) this.show(0);
    this.parts.play.textContent = "❚❚";
    this.parts.play.setAttribute("aria-label", "Pause");
    this.timer = setInterval(() => {
      if (this.at >= this.steps.length - 1) this.pause();
      else this.show(this.at + 1);
    }, PACE);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.parts.play.textContent = "▶";
    this.parts.play.setAttribute("aria-label", "Play the steps");
  }
}
