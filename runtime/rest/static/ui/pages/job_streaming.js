// The streaming queries of a job: how each does, and how it has done since it is looked at.

import { binaryCeiling, chart } from "../charts.js";
import { h } from "../dom.js";
import { bytes, count, duration, plural } from "../format.js";
import { card, empty, facts } from "../parts.js";
import { remember } from "../query_history.js";

export async function load(job) {
  return remember(job);
}

const LEVELS = { ok: "tone-good", low: "tone-warned", high: "tone-bad" };

/** What is said of back pressure, in words with a colour. */
export function pressure(query) {
  const level = query["backpressure-level"];
  if (level === undefined) return "not known";
  const busy = query.busy === undefined ? "" : ` busy ${Math.round(query.busy * 100)} %`;
  return [h("span", { class: `badge ${LEVELS[level] ?? ""}` }, level.toUpperCase()), h("span", { class: "small" }, busy)];
}

function rate(value) {
  return value >= 100 ? count(Math.round(value)) : value.toFixed(1);
}

function charts(points) {
  const line = (name, field) => ({ name, points: points.map((point) => [point.at, point[field]]) });
  return h(
    "div",
    { class: "charts" },
    chart("Rows per second", [line("in", "read"), line("done", "done")], rate),
    chart("Batch duration", [line("took", "took")], duration),
    chart("State size", [line("size", "bytes")], bytes, binaryCeiling),
    chart("Rows in state", [line("rows", "rows")], count),
    points.some((point) => point.lag !== null) && chart("Lag", [line("lag", "lag")], count),
  );
}

export function view(queries, job) {
  if (queries.length === 0) {
    return empty(job["end-time"] > 0 ? "No streaming query of this job runs any more." : "This job has no streaming query.");
  }
  return queries.map(({ task, query, points }) =>
    h(
      "div",
      { key: query["run-id"] },
      card(
        query.name || "A query without a name",
        facts([
          ["Task", task],
          ["Last batch", query.batch < 0 ? "none yet" : count(query.batch)],
          query["input-rows"] !== undefined && ["Rows in it", count(query["input-rows"])],
          ["Trigger interval", query["trigger-interval"] ? duration(query["trigger-interval"]) : "none"],
          ["Back pressure", pressure(query)],
        ]),
        points.length === 0
          ? empty("It has not told of a batch yet.")
          : [charts(points), h("p", { class: "small muted" }, `${plural(points.length, "batch", "batches")} since this page looks on.`)],
      ),
    ),
  );
}
