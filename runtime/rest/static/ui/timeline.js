// When each task waited, was deployed and ran, as bars over one axis.

import { h, s } from "./dom.js";
import { duration, time } from "./format.js";
import { tone } from "./parts.js";

const ENDS = ["FINISHED", "FAILED", "CANCELED"];

/** The phases of one attempt: [{state, start, end}], from the times at which it entered its states. */
export function phasesOf(timestamps, now) {
  const entered = Object.entries(timestamps)
    .filter(([, at]) => at > 0)
    .sort(([, a], [, b]) => a - b);
  return entered
    .map(([state, start], i) => ({ state, start, end: entered[i + 1]?.[1] ?? now }))
    .filter((phase) => !ENDS.includes(phase.state));
}

/** The bars. `rows` are {id, name, href, state, timestamps}. */
export function timeline(rows, now) {
  const times = rows.flatMap((row) => Object.values(row.timestamps)).filter((at) => at > 0);
  const start = Math.min(...times);
  const running = rows.some((row) => row.state && !ENDS.includes(row.state));
  const end = Math.max(...times, running ? now : 0, start + 1);
  const percent = (at) => `${((100 * (at - start)) / (end - start)).toFixed(2)}%`;
  const bars = (row) =>
    phasesOf(row.timestamps, now).map((phase) => {
      const width = Math.max((100 * (phase.end - phase.start)) / (end - start), 0.3);
      const last = phase.state === "RUNNING" ? tone(row.state) : "waiting";
      return s(
        "rect",
        { class: `fill-${last}`, x: percent(phase.start), y: 3, width: `${width.toFixed(2)}%`, height: 14, rx: 3 },
        s("title", {}, `${phase.state} ${duration(phase.end - phase.start)}, from ${time(phase.start)}`),
      );
    });
  const total = (row) => {
    const phases = phasesOf(row.timestamps, now);
    return phases.length ? duration(phases[phases.length - 1].end - phases[0].start) : "–";
  };
  return h(
    "div",
    { class: "timeline" },
    h(
      "ol",
      {},
      rows.map((row) =>
        h(
          "li",
          { key: row.id },
          h("a", { href: row.href, title: row.name }, row.name),
          s(
            "svg",
            { width: "100%", height: 20, role: "img", "aria-label": `${row.state}, ${total(row)}` },
            s("rect", { class: "track", y: 9, width: "100%", height: 2 }),
            bars(row),
          ),
          h("span", { class: "number small" }, total(row)),
        ),
      ),
    ),
    h(
      "div",
      { class: "axis small muted", "aria-hidden": "true" },
      h("span", {}),
      h(
        "span",
        { class: "ends" },
        [time(start), duration(end - start), running ? "now" : time(end)].map((text) => h("span", {}, text)),
      ),
      h("span", {}),
    ),
  );
}
