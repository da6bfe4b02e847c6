// Plain decoding beside speculation, from one seed: the texts are compared while they come.

export class Same {
  constructor(api, at) {
    this.api = api;
    this.at = at;
    this.running = null;
    at("same-form").addEventListener("submit", (event) => { event.preventDefault(); this.start(); });
  }

  async start() {
    this.running?.abort();
    this.running = new AbortController();
    const running = this.running, { signal } = running;
    const texts = { plain: "", spec: "" }, ended = { plain: false, spec: false };
    const body = {
      messages: [{ role: "user", content: this.at("same-prompt").value }],
      seed: Number(this.at("same-seed").value || 7), temperature: Number(this.at("same-temperature").value || 0.8), max_tokens: 160,
    };
    const check = () => this.check(texts, ended);
    check();
    const run = async (name, spectr) => {
      const begun = performance.now();
      let tokens = 0, calls = 0;
      for await (const event of this.api.stream("v1/chat/completions", { ...body, spectr: { ...spectr, trace: true, receipt: false } }, signal)) {
        if (signal.aborted) return;
        texts[name] += event.choices[0]?.delta?.content ?? "";
        for (const step of event.spectr?.trace ?? []) { tokens += step.tokens.length; calls += 1; }
        const seconds = (performance.now() - begun) / 1000;
        this.at(`${name}-rate`).textContent = `${(tokens / Math.max(1, calls)).toFixed(2)} tokens per call · ${(tokens / seconds).toFixed(1)} tokens/s`;
        check();
      }
      ended[name] = true;
      check();
    };
    try {
      await Promise.all([run("plain", { drafter: "none" }), run("spec", {})]);
    } catch (error) {
      if (error.name === "AbortError") return;
      running.abort(); // the other text would write over what is said here
      this.say(error.message, "bad");
    }
  }

  check(texts, ended) {
    const length = Math.min(texts.plain.length, texts.spec.length);
    let at = 0;
    while (at < length && texts.plain[at] === texts.spec[at]) at += 1;
    const whole = ended.plain && ended.spec;
    const parted = at < length || (whole && texts.plain.length !== texts.spec.length);
    for (const name of ["plain", "spec"]) {
      const mark = document.createElement("mark");
      mark.textContent = parted ? texts[name].slice(at) : "";
      this.at(`${name}-text`).replaceChildren(texts[name].slice(0, parted ? at : undefined), mark);
    }
    if (parted) this.say(`The texts parted at a near-tie after ${at} characters: two tokens were closer than this arithmetic can tell. Both follow the model's distribution.`, "");
    else if (whole) this.say(`Identical: ${texts.plain.length} characters, every one the same.`, "good");
    else this.say(`Identical so far: ${length} characters.`, "good");
  }

  say(words, kind) {
    const line = this.at("same-verdict");
    line.textContent = words;
    line.className = `verdict ${kind}`;
  }
}
