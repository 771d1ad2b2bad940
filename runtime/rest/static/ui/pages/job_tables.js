// Tables of jobs, for the overview and the list of all.

import { inOrder } from "../address.js";
import { at } from "../api.js";
import { h } from "../dom.js";
import { badge, copyable, isOver, lasting, moment, table, taskCounts } from "../parts.js";

export function jobHref(id, ...more) {
  return `#/jobs/${at(id, ...more)}`;
}

/** The running ones and the ended ones, each the newest first. */
export function split(jobs) {
  const ended = jobs.filter((job) => isOver(job.state)).sort((a, b) => b["end-time"] - a["end-time"]);
  const running = jobs.filter((job) => !isOver(job.state)).sort((a, b) => b["start-time"] - a["start-time"]);
  return { running, ended };
}

/** The beginning of a job's id: names are not unique. */
export function shortId(id) {
  return id.slice(0, 8);
}

/** A job's name with the beginning of its id. */
export function titleOf(job) {
  return job.name ? `${job.name} (${shortId(job.jid)})` : job.jid;
}

/** What was submitted, and whether it streams. */
export function kindOf(job) {
  return [job.kind, (job.jobType ?? job["job-type"])?.toLowerCase()].filter(Boolean).join(", ") || "–";
}

/** A job's name as a link to it, and the beginning of its id as a button that copies the whole. */
export function jobLink(id, name) {
  return [
    h("a", { href: jobHref(id), title: name }, name || id),
    " ",
    h("span", { class: "small muted" }, copyable(id, shortId(id))),
  ];
}

/** The columns of a table of these jobs, which all run, or have all ended. */
export function jobColumns(jobs, ended) {
  const lastOf = (job) => (job["end-time"] > 0 ? job["end-time"] : Date.now());
  const columns = [
    { title: "Job", kind: "name", cell: (job) => jobLink(job.jid, job.name), sort: { name: "name", value: (job) => job.name } },
    { title: "Kind", cell: kindOf, sort: { name: "kind", value: kindOf } },
    jobs.some((job) => job.owner) && {
      title: "Owner",
      kind: "name",
      cell: (job) => job.owner || "–",
      sort: { name: "owner", value: (job) => job.owner },
    },
    { title: "State", cell: (job) => badge(job.state), sort: { name: "state", value: (job) => job.state } },
    {
      title: "Started",
      cell: (job) => moment(job["start-time"]),
      sort: { name: "started", value: (job) => job["start-time"] },
    },
    ended && {
      title: "Ended",
      cell: (job) => moment(job["end-time"]),
      sort: { name: "ended", value: (job) => job["end-time"] },
    },
    {
      title: "Duration",
      kind: "number",
      cell: (job) => lasting(job["start-time"], job["end-time"]),
      sort: { name: "duration", value: (job) => lastOf(job) - job["start-time"] },
    },
    { title: "Tasks", cell: (job) => taskCounts(job.tasks), sort: { name: "tasks", value: (job) => job.tasks.total } },
    jobs.some((job) => job["waiting-for"]) && {
      title: "Waiting for",
      kind: "wrap",
      cell: (job) => job["waiting-for"] || "–",
      sort: { name: "waiting", value: (job) => job["waiting-for"] },
    },
  ];
  return columns.filter(Boolean);
}

/** A table of jobs, as they come or as `sorting` (see address.js) says. */
export function jobTable(caption, jobs, none, { columns, sorting, most = jobs.length }) {
  const rows = sorting ? inOrder(jobs, columns, sorting) : jobs;
  return table(caption, columns, rows.slice(0, most), { key: (job) => job.jid, none, sorting });
}
