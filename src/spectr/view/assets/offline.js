// The page of one text, without a server.

const at = (id) => document.getElementById(id);
const told = JSON.parse(at("data").textContent).steps;
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const parts = { slider: at("slider"), play: at("play"), follow: null, number: at("step-number"), gain: at("step-gain"), why: at("why"), tree: at("tree") };
const walk = new Steps(parts, (number) => {
  for (const span of document.querySelectorAll(".tok")) span.classList.toggle("here", span.dataset.step === String(number));
});
const pieces = new Pieces();
told.forEach((step, number) => {
  for (const { text, origin } of pieces.add(step)) {
    const span = document.createElement("span");
    span.className = `tok from-${ORIGINS[origin] ? origin : "plain"}`;
    span.textContent = text;
    span.title = ORIGINS[origin] ?? "";
    span.dataset.step = String(number);
    span.addEventListener("click", () => { walk.setFollow(false); walk.show(number); });
    at("text").append(span);
  }
});
const present = new Set(told.flatMap((step) => step.origins));
at("legend").replaceChildren(...Object.entries(ORIGINS).filter(([name]) => present.has(name)).map(([name, meaning]) => {
  const item = document.createElement("li");
  item.className = `from-${name}`;
  item.textContent = `${name}: ${meaning}`;
  return item;
}));
walk.setFollow(false);
walk.reset(told);
