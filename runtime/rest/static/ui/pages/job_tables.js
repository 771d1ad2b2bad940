// Tables of jobs, for the overview and the list of all.

import { at } from "../api.js";
import { h } from "../dom.js";
import { badge, isOver, lasting, moment, table, taskCounts } from "../parts.js";

export function jobHref(id, ...more) {
  return `#/jobs/${at(id, ...more)}`;
}

/** The running ones and the ended ones, each the newest first. */
export function split(jobs) {
  const ended = jobs.filter((job) => isOver(job.state)).sort((a, b) => b["end-time"] - a["end-time"]);
  const running = jobs.filter((job) => !isOver(job.state)).sort((a, b) => b["start-time"] - a["start-time"]);
  return { running, ended };
}

function link(job) {
  return h("a", { href: jobHref(job.jid), title: job.name }, job.name || job.jid);
}

export function jobTable(caption, jobs, none) {
  return table(
    caption,
    [
      { title: "Job", kind: "name", cell: link },
      { title: "State", cell: (job) => badge(job.state) },
      { title: "Started", kind: "wide", cell: (job) => moment(job["start-time"]) },
      { title: "Duration", kind: "number", cell: (job) => lasting(job["start-time"], job["end-time"]) },
      { title: "Tasks", kind: "wide", cell: (job) => taskCounts(job.tasks) },
    ],
    jobs,
    { key: (job) => job.jid, none },
  );
}
