// Checkpoints and savepoints.

import { at, getOptional } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { mode } from "../mode.js";
import { badge, card, empty, facts, isOver, lasting, moment, table } from "../parts.js";
import { actions, follow, rollBack } from "./checkpoint_actions.js";
import { jobHref } from "./job_tables.js";

export async function load(job) {
  await follow(job.jid);
  const [statistics, rescales, decisions] = await Promise.all([
    getOptional(`jobs/${at(job.jid)}/checkpoints`),
    getOptional(`jobs/${at(job.jid)}/rescales/history`),
    getOptional(`jobs/${at(job.jid)}/rescales/decisions`),
  ]);
  return { statistics, rescales, decisions };
}

/** The last rescales of the job, the newest first; nothing for a job that never had one. */
function rescaleHistory(rescales) {
  if (!rescales?.length) return null;
  const before = (one) => [...new Set(Object.values(one.partitionsBefore))].join(", ") || "?";
  const by = (one) => [one.requestedBy === "AUTOSCALER" ? "autoscaler" : "user", one.rescaleJob && [", ", h("a", { href: jobHref(one.rescaleJob) }, "its job")]];
  const took = (one) => (one.terminalState && one.endTimestampInMillis <= 0 ? "–" : lasting(one.startTimestampInMillis, one.endTimestampInMillis));
  return card(
    "Rescales",
    table(
      "Rescales",
      [
        { title: "Number", kind: "number", cell: (one) => one.rescaleAttemptId },
        { title: "Partitions", cell: (one) => `${before(one)} → ${one.partitions ?? "?"}${one.isUndo ? " (undo)" : ""}` },
        { title: "State", cell: (one) => badge(one.terminalState ?? "IN_PROGRESS") },
        { title: "Asked by", cell: by },
        { title: "Began", cell: (one) => moment(one.startTimestampInMillis) },
        { title: "Duration", kind: "number", cell: took },
        { title: "Reason, and outcome", kind: "wrap", cell: (one) => [one.reason, one.failure || one.location].filter(Boolean).join("; ") || "–" },
      ],
      rescales,
      { key: (one) => one.rescaleUuid, none: "None is remembered." },
    ),
  );
}

/** The autoscaler's last decision about each query; nothing for a job that it does not rescale. */
function lastDecisions(decisions) {
  if (!decisions?.length) return null;
  return card(
    "Autoscaler",
    table(
      "Last decisions",
      [
        { title: "Query", cell: (one) => one.query },
        { title: "Partitions", kind: "number", cell: (one) => one.partitions ?? "–" },
        { title: "Wanted", kind: "number", cell: (one) => one.wanted ?? "–" },
        { title: "Cores", kind: "number", cell: (one) => one.cores ?? "–" },
        { title: "Reason", kind: "wrap", cell: (one) => one.reason },
        { title: "Decided", cell: (one) => moment(one.timestamp) },
      ],
      decisions,
      { key: (one) => one.query, none: "There is none." },
    ),
  );
}

/** What can be done with a checkpoint or savepoint that is there: another job begins from it, or its own goes back. */
function restore(one, job, shell) {
  const ways = [];
  if (one.status === "COMPLETED" && !one.discarded && !mode.history) {
    if (one.is_savepoint) ways.push(h("a", { href: `#/submit/${at(one.external_path)}` }, "Begin a job from it"));
    const back = { type: "button", disabled: job.state !== "RUNNING", on: { click: () => rollBack(job, one, shell) } };
    if (!isOver(job.state)) ways.push(h("button", back, "Roll back"));
  }
  if (ways.length) return h("div", { class: "buttons" }, ways);
  return { COMPLETED: one.discarded ? "Discarded" : "–", FAILED: "Nothing was kept" }[one.status] ?? "–";
}

export function view(loaded, job, _parameters, shell) {
  const { statistics, rescales, decisions } = loaded ?? {};
  if (!statistics || (statistics.counts.total === 0 && statistics.counts.restored === 0)) {
    return [actions(job, shell), empty("This job has no checkpoints."), rescaleHistory(rescales), lastDecisions(decisions)];
  }
  const { counts, history, latest } = statistics;
  return [
    actions(job, shell),
    rescaleHistory(rescales),
    lastDecisions(decisions),
    facts([
      ["Completed", count(counts.completed)],
      ["In progress", count(counts.in_progress)],
      ["Failed", count(counts.failed)],
      ["Restored", count(counts.restored)],
      latest.restored && ["Restored last", latest.restored.is_savepoint ? "a savepoint, " : `number ${latest.restored.id}, `, moment(latest.restored.restore_timestamp)],
    ]),
    card(
      "History",
      table(
        "Checkpoints",
        [
          { title: "Number", kind: "number", cell: (c) => c.id },
          { title: "Kind", cell: (c) => (c.is_savepoint ? "savepoint" : "checkpoint") },
          { title: "State", cell: (c) => badge(c.status) },
          { title: "Triggered", cell: (c) => moment(c.trigger_timestamp) },
          { title: "Duration", kind: "number", cell: (c) => duration(c.end_to_end_duration) },
          { title: "Size", kind: "number", cell: (c) => bytes(c.state_size) },
          { title: "Path", kind: "mono wrap", cell: (c) => c.external_path ?? c.failure_message ?? "–" },
          { title: "Restore", cell: (c) => restore(c, job, shell) },
        ],
        history,
        { key: (c) => c.id, none: "None is remembered." },
      ),
      h(
        "p",
        { class: "small muted" },
        "A completed checkpoint is discarded when newer ones are complete; ",
        h("code", {}, "execution.checkpointing.num-retained"),
        " says how many are kept. Savepoints stay until they are disposed of.",
      ),
    ),
  ];
}
