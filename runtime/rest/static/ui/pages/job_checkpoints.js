// Checkpoints and savepoints.

import { at, getOptional } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { mode } from "../mode.js";
import { badge, card, empty, facts, isOver, moment, table } from "../parts.js";
import { actions, follow, rollBack } from "./checkpoint_actions.js";

export async function load(job) {
  await follow(job.jid);
  return getOptional(`jobs/${at(job.jid)}/checkpoints`);
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

export function view(statistics, job, _parameters, shell) {
  if (!statistics || (statistics.counts.total === 0 && statistics.counts.restored === 0)) {
    return [actions(job, shell), empty("This job has no checkpoints.")];
  }
  const { counts, history, latest } = statistics;
  return [
    actions(job, shell),
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
