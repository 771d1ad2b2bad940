// When which task of a job did what.

import { at, getJson } from "../api.js";
import { h } from "../dom.js";
import { card, empty, moment, table } from "../parts.js";
import { timeline } from "../timeline.js";
import { jobHref } from "./job_tables.js";

export async function load(job) {
  return Promise.all(job.vertices.map((v) => getJson(`jobs/${at(job.jid)}/vertices/${at(v.id)}/subtasktimes`)));
}

export function view(vertices, job) {
  const rows = vertices.flatMap((times) => {
    const vertex = job.vertices.find((v) => v.id === times.id);
    return times.subtasks.map((subtask) => ({
      id: `${times.id} ${subtask.subtask}`,
      name: times.subtasks.length > 1 ? `${times.name} (${subtask.subtask})` : times.name,
      href: jobHref(job.jid, "tasks", times.id),
      state: vertex?.status ?? "",
      timestamps: subtask.timestamps,
    }));
  });
  const entered = Object.entries(job.timestamps)
    .filter(([, ms]) => ms > 0)
    .sort(([, a], [, b]) => a - b);
  const begun = rows.some((row) => Object.values(row.timestamps).some((ms) => ms > 0));
  return [
    card("Tasks", begun ? timeline(rows, job.now) : empty("No task has begun yet.")),
    card(
      "States of the job",
      table(
        "States of the job",
        [
          { title: "State", cell: ([state]) => state },
          { title: "Entered", cell: ([, ms]) => moment(ms) },
        ],
        entered,
        { key: ([state]) => state },
      ),
    ),
  ].map((node) => h("div", { key: node.key }, node));
}
