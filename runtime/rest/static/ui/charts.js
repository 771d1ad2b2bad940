// Figures over time, as inline SVG: one small chart for each.

import { h, s } from "./dom.js";
import { time } from "./format.js";

const WIDTH = 320;
const HEIGHT = 130;
const ROOM = { left: 4, right: 4, top: 12, bottom: 20 };
const TONES = ["one", "two"];

/** A round number that is not below `value`: 1, 2, 2.5 or 5 times a power of ten. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((round) => round >= value * 0.999999);
}

/** The same for bytes: a power of two. */
export function binaryCeiling(value) {
  return value > 1 ? 2 ** Math.ceil(Math.log2(value)) : 1;
}

/**
 * A chart.
 * @param title of it.
 * @param lines are {name, points: [[time, value], ...]}; a value that is not known is null, and the line has a gap there.
 * @param format makes words of a value.
 * @param above a round number that is not below a value.
 */
export function chart(title, lines, format, above = ceiling) {
  const points = lines.flatMap((line) => line.points);
  const known = points.filter(([, value]) => value !== null);
  const start = Math.min(...points.map(([at]) => at));
  const end = Math.max(...points.map(([at]) => at), start + 1);
  const top = above(Math.max(...known.map(([, value]) => value), 0));
  const x = (at) => ROOM.left + ((at - start) / (end - start)) * (WIDTH - ROOM.left - ROOM.right);
  const y = (value) => HEIGHT - ROOM.bottom - (value / top) * (HEIGHT - ROOM.top - ROOM.bottom);
  const last = (line) => line.points.findLast(([, value]) => value !== null)?.[1];
  const words = (line) => (last(line) === undefined ? "not known" : format(last(line)));
  const said = lines.map((line) => `${line.name} ${words(line)}`).join(", ");
  return h(
    "figure",
    { class: "chart", key: title },
    h(
      "figcaption",
      {},
      h("span", { class: "chart-title" }, title),
      lines.map((line, i) =>
        h(
          "span",
          { class: "chart-line small" },
          lines.length > 1 && [h("span", { class: `swatch ${TONES[i]}`, "aria-hidden": "true" }), `${line.name} `],
          h("strong", {}, words(line)),
        ),
      ),
    ),
    s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${said}; up to ${format(top)}` },
      [0, 0.5, 1].map((part) =>
        s("line", { class: "grid", x1: ROOM.left, x2: WIDTH - ROOM.right, y1: y(top * part), y2: y(top * part) }),
      ),
      s("text", { class: "tick", x: ROOM.left, y: y(top) - 3 }, format(top)),
      s("text", { class: "tick", x: ROOM.left, y: HEIGHT - 5 }, time(start)),
      time(end) !== time(start) &&
        s("text", { class: "tick", x: WIDTH - ROOM.right, y: HEIGHT - 5, "text-anchor": "end" }, time(end)),
      lines.map((line, i) => strokes(line.points, x, y, TONES[i])),
    ),
  );
}

/** A path for each stretch of values that are known; a value alone is a dot. */
function strokes(points, x, y, kind) {
  const stretches = [[]];
  for (const [at, value] of points) {
    if (value === null) stretches.push([]);
    else stretches.at(-1).push([x(at).toFixed(1), y(value).toFixed(1)]);
  }
  return stretches
    .filter((stretch) => stretch.length > 0)
    .map((stretch) =>
      stretch.length === 1
        ? s("circle", { class: `dot-${kind}`, cx: stretch[0][0], cy: stretch[0][1], r: 2.5 })
        : s("polyline", { class: `line-${kind}`, points: stretch.map((point) => point.join(",")).join(" ") }),
    );
}
