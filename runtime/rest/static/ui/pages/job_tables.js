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
  const href = jobHref(job.jid);
  return [
    h("a", { href, title: job.name }, job.name || job.jid),
    " ",
    h("code", { class: "small muted", title: job.jid }, job.jid.slice(0, 8)), // names are not unique
  ];
}

export function jobTable(caption, jobs, none) {
  return table(
    caption,
    [
      { title: "Job", kind: "name", cell: link },
      { title: "State", cell: (job) => badge(job.state) },
      { title: "Started", cell: (job) => moment(job["start-time"]) },
      { title: "Duration", kind: "number", cell: (job) => lasting(job["start-time"], job["end-time"]) },
      { title: "Tasks", cell: (job) => taskCounts(job.tasks) },
    ],
    jobs,
    { key: (job) => job.jid, none },
  );
}
