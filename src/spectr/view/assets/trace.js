// What a trace says of a text: its tokens with their origins, and the tree of every step. No DOM in here.

export const ORIGINS = {
  drafter: "drafted by the drafter",
  lookup: "drafted from the text itself",
  prediction: "drafted from the prediction",
  grammar: "drafted because the grammar forces it",
  correction: "the model's own token, where it disagreed with every draft",
  bonus: "the model's own token, after a draft that was right to its end",
  plain: "decoded without drafts",
};

// Tokens carry bytes, and a character may take several tokens: the decoder holds what is not complete.
export class Pieces {
  constructor() {
    this.decoder = new TextDecoder("utf-8");
  }

  add(step) {
    return step.tokens.map((token, at) => ({
      token,
      text: this.decoder.decode(Uint8Array.from(step.bytes[at]), { stream: true }),
      origin: step.origins[at],
    }));
  }
}

export const shown = (text) => (text === "" ? "∅" : text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥"));
export const percent = (value) => (value === null || value === undefined ? "unknown" : value >= 0.0995 ? `${Math.round(100 * value)} %` : `${(100 * value).toPrecision(2)} %`);

// Why a node was kept or not, in words.
export function explain(step, id) {
  const { nodes, bonus } = step.tree;
  const node = nodes[id];
  if (node.parent === null) return "The root: the last token of the text so far. Everything drafted hangs below it.";
  const name = `“${shown(node.text)}”`;
  const chances = `The drafter gave it ${percent(node.draft)}, the model ${percent(node.target)}.`;
  if (node.accepted) return `${name} was kept: the model, drawing for itself with the same randomness, chose this token here. ${chances}`;
  const parent = nodes[node.parent];
  if (!parent.accepted && parent.parent !== null) return `${name} was never looked at: a token before it was not kept. ${chances}`;
  const sibling = nodes.find((other) => other.parent === node.parent && other.accepted);
  const instead = sibling ? `“${shown(sibling.text)}”, another draft,` : `“${shown(bonus.text)}”`;
  return `${name} was not kept: the model drew ${instead} in its place. ${chances}`;
}

export function explainBonus(step) {
  const { bonus } = step.tree;
  const why = bonus.corrected
    ? "No draft here was the token that the model drew, so its own token was added"
    : "Every draft up to here was right, so the call gave one token more";
  return `“${shown(bonus.text)}”: ${why}. The model gave it ${percent(bonus.target)}.`;
}

export function gain(step) {
  const count = step.tokens.length;
  return `${count} token${count === 1 ? "" : "s"} for one call · ${step.accepted} of ${step.drafted} drafts kept`;
}
