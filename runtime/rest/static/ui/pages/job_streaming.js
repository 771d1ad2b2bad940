// The streaming queries of a job: how each does, and how it has done as far as the cluster remembers.

import { at, getOptional } from "../api.js";
import { binaryCeiling, chart } from "../charts.js";
import { h } from "../dom.js";
import { bytes, count, duration, plural } from "../format.js";
import { card, empty, facts, isOver, moment } from "../parts.js";

export async function load(job) {
  return (await getOptional(`jobs/${at(job.jid)}/queries`))?.queries ?? [];
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

function charts(history) {
  const line = (name, column) => ({ name, points: history.timestamps.map((at, i) => [at, history[column][i]]) });
  return h(
    "div",
    { class: "charts" },
    chart("Rows per second", [line("in", "input-rows-per-second"), line("done", "processed-rows-per-second")], rate),
    chart("Batch duration", [line("took", "batch-durations")], duration),
    chart("State size", [line("size", "state-bytes")], bytes, binaryCeiling),
    chart("Rows in state", [line("rows", "state-rows")], count),
    history.lags.some((lag) => lag !== null) && chart("Lag", [line("lag", "lags")], count),
  );
}

/** What the job says of a query at present; of one that runs no more, of its last batch. */
function present(job, history) {
  return job.spark?.[history["vertex-id"]]?.queries.find((query) => query.id === history.id) ?? {};
}

export function view(histories, job) {
  if (histories.length === 0) {
    return empty(isOver(job.state) ? "No streaming query was seen in this job." : "This job has no streaming query.");
  }
  return histories.map((history) => {
    const query = present(job, history);
    const points = history.timestamps.length;
    const batch = history.batches.at(-1);
    return h(
      "div",
      { key: `${history["vertex-id"]} ${history.id}` },
      card(
        history.name || "A query without a name",
        facts([
          ["Task", job.vertices.find((vertex) => vertex.id === history["vertex-id"])?.name ?? "–"],
          ["Last batch", batch === undefined ? "none yet" : count(batch)],
          query["input-rows"] !== undefined && ["Rows in it", count(query["input-rows"])],
          ["Trigger interval", query["trigger-interval"] ? duration(query["trigger-interval"]) : "none"],
          ["Back pressure", pressure(query)],
          ["Id", h("code", {}, history.id)],
        ]),
        points === 0
          ? empty("It has not reported a batch yet.")
          : [
              charts(history),
              h("p", { class: "small muted" }, `${plural(points, "point")} since `, moment(history.timestamps[0])),
            ],
      ),
    );
  });
}
