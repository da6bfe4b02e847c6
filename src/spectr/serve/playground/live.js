// The counters of the server, read every two seconds while they are looked at.

const SVG = "http://www.w3.org/2000/svg";
const EVERY = 2000, KEPT = 60;

function svg(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

export function parseMetrics(page) {
  const found = new Map();
  for (const line of page.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const cut = line.lastIndexOf(" ");
    found.set(line.slice(0, cut), Number(line.slice(cut + 1)));
  }
  return found;
}

export class Live {
  constructor(api, at) {
    this.api = api;
    this.at = at;
    this.timer = null;
    this.last = null;
    this.rates = [];
    this.looking = false;
  }

  start() {
    if (this.timer === null) {
      this.look();
      this.timer = setInterval(() => this.look(), EVERY);
    }
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
  }

  // One call at a time: while the key is asked for, no other call asks for it again. Without a key, nothing is read.
  async look() {
    if (this.looking) return;
    this.looking = true;
    let page;
    try { page = await (await this.api.call("metrics")).text(); }
    catch (error) { if (error.status === 401) this.stop(); return; }
    finally { this.looking = false; }
    const now = performance.now(), found = parseMetrics(page), tokens = found.get("spectr:generation_tokens_total") ?? 0;
    if (this.last) this.rates.push(Math.max(0, (tokens - this.last.tokens) / ((now - this.last.now) / 1000)));
    this.rates = this.rates.slice(-KEPT);
    this.last = { tokens, now };
    this.tiles(found);
    this.chart();
    this.depths(found);
  }

  tiles(found) {
    const calls = found.get("spectr:spec_decode_num_drafts_total") ?? 0, tokens = found.get("spectr:generation_tokens_total") ?? 0;
    const values = [
      ["tokens per second", (this.rates.at(-1) ?? 0).toFixed(1)], ["tokens per call", calls ? (tokens / calls).toFixed(2) : "–"],
      ["texts running", found.get("spectr:num_requests_running") ?? 0], ["texts waiting", found.get("spectr:num_requests_waiting") ?? 0],
      ["of the cache in use", `${(100 * (found.get("spectr:kv_cache_usage_perc") ?? 0)).toFixed(0)} %`], ["tokens generated", tokens],
    ];
    this.at("tiles").replaceChildren(...values.map(([name, value]) => {
      const tile = document.createElement("div"), figure = document.createElement("b"), label = document.createElement("span");
      tile.className = "tile";
      figure.textContent = String(value);
      label.textContent = name;
      tile.append(figure, label);
      return tile;
    }));
  }

  chart() {
    const most = Math.max(...this.rates, 1), step = 600 / Math.max(1, KEPT - 1);
    const points = this.rates.map((rate, at) => `${(600 - (this.rates.length - 1 - at) * step).toFixed(1)} ${(170 - 150 * rate / most).toFixed(1)}`);
    const picture = svg("svg", { viewBox: "0 0 600 180", preserveAspectRatio: "none", role: "img", "aria-label": `now ${(this.rates.at(-1) ?? 0).toFixed(1)} tokens per second` });
    if (points.length > 1) {
      const first = points[0].split(" ")[0];
      picture.append(svg("path", { class: "area", d: `M${first} 170L${points.join("L")}L600 170Z` }), svg("path", { class: "trace", d: `M${points.join("L")}` }));
    }
    this.at("chart").replaceChildren(picture);
  }

  depths(found) {
    const name = /^spectr:spec_decode_num_accepted_tokens_per_pos_total\{position="(\d+)"\}$/, kept = [];
    for (const [key, value] of found) { const match = key.match(name); if (match) kept[Number(match[1])] = value; }
    const calls = found.get("spectr:spec_decode_num_drafts_total") || 1;
    const picture = svg("svg", { viewBox: "0 0 600 180", preserveAspectRatio: "xMinYMid", role: "img", "aria-label": "Share of calls that accepted a draft at each depth" });
    kept.slice(0, 12).forEach((value, depth) => {
      const share = value / calls, height = 130 * share;
      picture.append(svg("rect", { class: "col", x: 12 + depth * 48, y: 150 - height, width: 34, height: Math.max(1, height), rx: 4 }),
        svg("text", { x: 29 + depth * 48, y: 168, "text-anchor": "middle" }, String(depth + 1)),
        svg("text", { x: 29 + depth * 48, y: 144 - height, "text-anchor": "middle" }, `${Math.round(100 * share)} %`));
    });
    this.at("depths").replaceChildren(picture);
  }
}
