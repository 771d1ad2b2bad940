// A flame graph: frames from the outermost down, as wide as they were seen often; and which frames were at work themselves.

import { h, s } from "./dom.js";
import { count } from "./format.js";
import { table } from "./parts.js";

const ROW = 20;
const LEAST = 0.004; // of the whole: what is narrower cannot be seen
const MOST_FRAMES = 3000;
const SHOWN = 15;

/** The tree as boxes: {name, depth, left, width}, parts of the whole. */
export function layout(root) {
  const boxes = [];
  const place = (node, depth, left) => {
    const width = node.value / root.value;
    if (width < LEAST || boxes.length >= MOST_FRAMES) return;
    boxes.push({ name: node.name, value: node.value, depth, left, width });
    let at = left;
    for (const child of node.children) {
      place(child, depth + 1, at);
      at += child.value / root.value;
    }
  };
  if (root.value > 0) place(root, 0, 0);
  return boxes;
}

/** How often each frame was the innermost, the most frequent first: [[name, count], ...]. */
export function own(root) {
  const counts = new Map();
  const visit = (node) => {
    const inner = node.value - node.children.reduce((sum, child) => sum + child.value, 0);
    if (inner > 0) counts.set(node.name, (counts.get(node.name) ?? 0) + inner);
    node.children.forEach(visit);
  };
  visit(root);
  return [...counts].sort(([, a], [, b]) => b - a);
}

const percent = (part) => `${(100 * part).toFixed(2)}%`;

export function flameGraph(root) {
  const boxes = layout(root);
  const depth = Math.max(0, ...boxes.map((box) => box.depth)) + 1;
  return h(
    "div",
    { class: "scroller flame", tabindex: "0", role: "region", "aria-label": "Flame graph" },
    s(
      "svg",
      { width: "100%", height: depth * ROW, role: "img", "aria-label": `Flame graph of ${count(boxes.length)} frames` },
      boxes.map((box) =>
        // An svg of its own cuts its text where the frame ends.
        s(
          "svg",
          { x: percent(box.left), y: box.depth * ROW, width: percent(box.width), height: ROW - 1 },
          s("title", {}, `${box.name}: ${count(box.value)} of ${count(root.value)}`),
          s("rect", { class: `frame-${box.depth === 0 ? "root" : box.depth % 3}`, width: "100%", height: ROW - 1 }),
          box.width > 0.03 && s("text", { class: "frame-name", x: 4, y: 13.5 }, box.name),
        ),
      ),
    ),
  );
}

/** The frames that were seen innermost most often, for who does not see the graph. */
export function hottest(root) {
  return table(
    "Where the threads were most often",
    [
      { title: "Function", kind: "mono wrap", cell: ([name]) => name },
      { title: "Samples", kind: "number", cell: ([, times]) => count(times) },
      { title: "Share", kind: "number", cell: ([, times]) => percent(times / root.value) },
    ],
    own(root).slice(0, SHOWN),
    { key: ([name]) => name },
  );
}
