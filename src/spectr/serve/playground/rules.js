// One prompt under several rules: tokens per call, with their spread.

const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}

export class Rules {
  constructor(api, at, rules) {
    Object.assign(this, { api, at, rules });
    at("rules-form").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
  }

  async start() {
    const body = this.at("rules-table").tBodies[0];
    body.replaceChildren();
    const asked = {
      messages: [{ role: "user", content: this.at("rules-prompt").value }], temperature: Number(this.at("rules-temperature").value),
      max_tokens: 80, n: Math.max(1, Math.min(16, Number(this.at("rules-texts").value) || 4)), seed: 1,
    };
    const rows = [];
    for (const rule of this.rules().filter((one) => one.offered)) {
      const row = body.insertRow();
      row.insertCell().textContent = rule.name;
      const cells = [row.insertCell(), row.insertCell(), row.insertCell()];
      cells[1].textContent = "…";
      cells[2].textContent = rule.lossless ? "lossless" : "LOSSY";
      try {
        const found = await this.api.json("v1/chat/completions", { ...asked, spectr: { rule: rule.name, drafter: rule.drafter ?? undefined, nodes: rule.nodes ?? undefined, trace: true, receipt: false } });
        const values = found.choices.map((choice) => {
          const steps = choice.spectr.trace;
          return steps.reduce((sum, step) => sum + step.tokens.length, 0) / Math.max(1, steps.length);
        });
        rows.push({ cells, values, mean: values.reduce((sum, value) => sum + value, 0) / values.length });
      } catch (error) {
        cells[1].textContent = "–";
        cells[2].textContent = error.message;
      }
      this.draw(rows);
    }
  }

  draw(rows) {
    const most = Math.max(...rows.flatMap((row) => row.values), 1);
    for (const { cells, values, mean } of rows) {
      const picture = svg("svg", { viewBox: "0 0 400 22", preserveAspectRatio: "none", role: "img", "aria-label": `${mean.toFixed(2)} tokens per call` });
      const scale = 396 / most;
      picture.append(svg("rect", { class: "bar-fill", x: 0, y: 4, width: mean * scale, height: 14, rx: 3 }),
        svg("line", { class: "bar-span", x1: Math.min(...values) * scale, x2: Math.max(...values) * scale, y1: 11, y2: 11 }));
      cells[0].replaceChildren(picture);
      cells[1].textContent = mean.toFixed(2);
    }
  }
}
