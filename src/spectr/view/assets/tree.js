// One step's tree as SVG. Text is set as text, never as markup.

import { explain, explainBonus, shown } from "./trace.js";

const SVG = "http://www.w3.org/2000/svg";
const BOX = 92, HIGH = 26, GAP_X = 34, GAP_Y = 8, PAD = 14;

function made(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Leaves one below the other in the order of the tree, and every parent in the middle of its children.
export function layout(nodes, bonusParent) {
  const children = nodes.map(() => []);
  nodes.forEach((node, id) => { if (node.parent !== null) children[node.parent].push(id); });
  const places = new Map();
  let row = 0;
  const visit = (id, depth) => {
    const below = children[id];
    const extra = id === bonusParent;
    const ys = below.map((child) => visit(child, depth + 1));
    if (extra) { places.set("bonus", { depth: depth + 1, y: row }); ys.push(row); row += 1; }
    let y;
    if (ys.length === 0) { y = row; row += 1; } else y = (ys[0] + ys[ys.length - 1]) / 2;
    places.set(id, { depth, y });
    return y;
  };
  visit(0, 0);
  return { places, rows: row };
}

function short(text) {
  const full = shown(text);
  const signs = [...full];
  return signs.length > 9 ? `${signs.slice(0, 8).join("")}…` : full;
}

function box(place, text, share, classes, label) {
  const x = PAD + place.depth * (BOX + GAP_X), y = PAD + place.y * (HIGH + GAP_Y);
  const group = made("g", { class: `node ${classes}`, transform: `translate(${x} ${y})`, tabindex: "0", role: "img", "aria-label": label });
  const words = made("text", { x: 8, y: 15 });
  words.textContent = short(text);
  group.append(made("rect", { class: "box", width: BOX, height: HIGH, rx: 7 }), words);
  if (share !== null && share !== undefined) {
    group.append(made("rect", { class: "track", x: 8, y: HIGH - 6, width: BOX - 16, height: 3, rx: 1.5 }),
      made("rect", { class: "share", x: 8, y: HIGH - 6, width: Math.max(1, (BOX - 16) * share), height: 3, rx: 1.5 }));
  }
  return group;
}

function edge(from, to, classes) {
  const x0 = PAD + from.depth * (BOX + GAP_X) + BOX, y0 = PAD + from.y * (HIGH + GAP_Y) + HIGH / 2;
  const x1 = PAD + to.depth * (BOX + GAP_X), y1 = PAD + to.y * (HIGH + GAP_Y) + HIGH / 2;
  const middle = (x0 + x1) / 2;
  return made("path", { class: `edge ${classes}`, d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}` });
}

const PART = 12; // nodes that are made in one task, so that a large tree does not hold up the page
const later = () => new Promise((next) => setTimeout(next, 0));

// Draws a step; gives up when another step is drawn into the same place meanwhile.
export async function drawTree(into, step, say) {
  const { nodes, bonus } = step.tree;
  const ticket = (into.ticket = (into.ticket ?? 0) + 1);
  const { places, rows } = layout(nodes, bonus.parent);
  const depth = Math.max(...[...places.values()].map((place) => place.depth));
  const width = 2 * PAD + depth * (BOX + GAP_X) + BOX, height = 2 * PAD + rows * (HIGH + GAP_Y) - GAP_Y;
  const svg = made("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "The token tree of this step" });
  svg.style.minWidth = `${Math.round(0.62 * width)}px`; // a wide tree shrinks to fit, as far as it stays legible
  const edges = { lost: [], kept: [] }, boxes = [];
  for (let id = 0; id < nodes.length; id += 1) {
    const node = nodes[id], isRoot = node.parent === null;
    if (!isRoot) edges[node.accepted ? "kept" : "lost"].push(edge(places.get(node.parent), places.get(id), node.accepted ? "kept" : ""));
    const group = box(places.get(id), node.text, isRoot ? null : node.target, isRoot ? "root" : node.accepted ? "kept" : "lost", explain(step, id));
    boxes.push(group);
    if (id % PART === PART - 1) {
      await later();
      if (into.ticket !== ticket) return;
    }
  }
  edges.kept.push(edge(places.get(bonus.parent), places.get("bonus"), "added"));
  boxes.push(box(places.get("bonus"), bonus.text, bonus.target, "added", explainBonus(step)));
  svg.append(...edges.lost, ...edges.kept, ...boxes);
  const tell = (event) => {
    const group = event.target.closest?.(".node");
    if (group) say(group.getAttribute("aria-label"));
  };
  svg.addEventListener("pointerover", tell);
  svg.addEventListener("focusin", tell);
  into.replaceChildren(svg);
}
