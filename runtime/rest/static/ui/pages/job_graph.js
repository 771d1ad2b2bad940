// The job's graph, and its tasks as a table.

import { getJson, at } from "../api.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { jobGraph, pressureOf, progressOf, stageGraphs } from "../graph.js";
import { badge, card, empty, gauge, lasting, notice, table, tone } from "../parts.js";
import { pressure } from "./job_streaming.js";
import { jobHref } from "./job_tables.js";

export async function load(job) {
  if (job.state !== "FAILED" && job.state !== "FAILING") return null;
  const { exceptionHistory } = await getJson(`jobs/${at(job.jid)}/exceptions?maxExceptions=1`);
  return exceptionHistory.entries[0] ?? null;
}

/** The line of a traceback that says what happened: its last that is not indented. */
export function lastLine(entry) {
  const lines = entry.stacktrace.trimEnd().split("\n");
  const said = lines.filter((line) => line && !/^\s|^(Caused by|Traceback|During|The above)/.test(line));
  return (entry.stacktrace.startsWith("Traceback") ? said.at(-1) : said[0]) ?? entry.exceptionName;
}

function progress(vertex, spark) {
  const found = progressOf(spark);
  if (!found) return "–";
  return found.share === null ? found.words : gauge(found.share, 1, found.words, `fill-${tone(vertex.status)}`);
}

function queries(job) {
  const of = (vertex) => job.spark?.[vertex.id]?.queries ?? [];
  const rows = job.vertices.flatMap((v) => of(v).map((query) => ({ ...query, task: v.name })));
  return (
    rows.length > 0 &&
    card(
      "Streaming queries",
      table(
        "Streaming queries",
        [
          { title: "Query", kind: "name", cell: (query) => query.name || "without a name" },
          { title: "Last batch", kind: "number", cell: (query) => (query.batch < 0 ? "none yet" : count(query.batch)) },
          { title: "Rows/s in", kind: "number", cell: (query) => rate(query["input-rows-per-second"]) },
          { title: "Rows/s done", kind: "number", cell: (query) => rate(query["processed-rows-per-second"]) },
          { title: "Back pressure", cell: pressure },
          { title: "Task", kind: "name", cell: (query) => query.task },
          { title: "Id", kind: "mono", cell: (query) => query.id },
        ],
        rows,
        { key: (query) => query["run-id"] },
      ),
      h("p", {}, h("a", { href: jobHref(job.jid, "streaming") }, "Their figures over time")),
    )
  );
}

const STAGE_TONES = { ACTIVE: "RUNNING", COMPLETE: "FINISHED", FAILED: "FAILED", SKIPPED: "CANCELED" };

/** The newest stages of the job's scripts. */
function stagesOf(job) {
  return job.vertices.flatMap((v) => (job.spark?.[v.id]?.["latest-stages"] ?? []).map((stage) => ({ ...stage, task: v })));
}

/** Drawings of the newest Spark jobs of the job's scripts, below the scripts' boxes. */
function stageDrawings(job) {
  const found = stagesOf(job).map((stage) => ({ ...stage, tone: tone(STAGE_TONES[stage.state]) }));
  return (
    found.length > 0 &&
    h("div", { class: "stage-graphs", key: "stages", role: "group", "aria-label": "Graphs of Spark's stages" }, stageGraphs(found))
  );
}

/** Table of the newest stages, the newest first. */
function stages(job) {
  const rows = stagesOf(job);
  if (rows.length === 0) return null;
  const all = job.vertices.reduce((sum, v) => sum + (job.spark?.[v.id]?.stages ?? 0), 0);
  const bar = (stage) => {
    const words = `${count(stage["tasks-completed"])} of ${plural(stage.tasks, "task")}`;
    return gauge(stage["tasks-completed"], stage.tasks, words, `fill-${tone(STAGE_TONES[stage.state])}`);
  };
  return card(
    "Spark stages",
    table(
      "Spark stages",
      [
        { title: "Call", kind: "name", cell: (stage) => stage.name },
        { title: "State", cell: (stage) => h("span", { class: `badge tone-${tone(STAGE_TONES[stage.state])}` }, stage.state) },
        { title: "Progress", cell: bar },
        { title: "Stage", kind: "number", cell: (stage) => stage.id },
      ],
      rows.reverse(),
      { key: (stage) => `${stage.task.id} ${stage.id}` },
    ),
    all > rows.length && h("p", { class: "small muted" }, `The last ${rows.length} of ${plural(all, "stage")}.`),
  );
}

/** What the colours of back pressure mean, where there are any. */
function legend(job) {
  const levels = job.vertices.map((v) => pressureOf(job.spark?.[v.id])).filter(Boolean);
  return (
    levels.length > 0 &&
    h(
      "ul",
      { class: "legend small", key: "legend", "aria-label": "Back pressure" },
      ["ok", "low", "high"].map((level) => h("li", {}, h("span", { class: `swatch pressure-${level}` }), `back pressure ${level.toUpperCase()}`)),
    )
  );
}

function rate(value) {
  return value === undefined ? "none yet" : value.toFixed(1);
}

export function view(failure, job) {
  const href = (id) => jobHref(job.jid, "tasks", id);
  const waiting = job["waiting-for"] ?? {};
  const ahead = job.now - Date.now();
  return [
    failure &&
      notice(
        "bad",
        h("strong", {}, failure.taskName ? `${failure.taskName} failed` : "The job failed"),
        h("p", { class: "mono wrap" }, lastLine(failure)),
        h("a", { href: jobHref(job.jid, "exceptions") }, "The whole traceback"),
      ),
    job.vertices.length === 0
      ? empty("The job has no tasks yet.")
      : [
          h(
            "div",
            { class: "graph-scroller", key: "graph", tabindex: "0", role: "region", "aria-label": "Job graph" },
            jobGraph(job, href),
            stageDrawings(job),
          ),
          legend(job),
          stages(job),
          card(
            "Tasks",
            table(
              "Tasks",
              [
                { title: "Task", kind: "name", cell: (v) => h("a", { href: href(v.id), title: v.name }, v.name) },
                { title: "State", cell: (v) => badge(v.status) },
                { title: "Duration", kind: "number", cell: (v) => lasting(v["start-time"], v["end-time"], ahead) },
                { title: "Progress", cell: (v) => progress(v, job.spark?.[v.id]) },
                { title: "Waiting for", cell: (v) => waiting[v.id] ?? "–" },
              ],
              job.vertices,
              { key: (v) => v.id },
            ),
          ),
          queries(job),
        ],
  ];
}
