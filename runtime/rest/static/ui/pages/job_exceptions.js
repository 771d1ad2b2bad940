// What went wrong, the newest first, the user's own traceback in each.

import { at, getJson } from "../api.js";
import { h } from "../dom.js";
import { empty, moment } from "../parts.js";
import { verbatim } from "../texts.js";
import { lastLine } from "./job_graph.js";

const SHOWN = 20;

export async function load(job) {
  return (await getJson(`jobs/${at(job.jid)}/exceptions?maxExceptions=${SHOWN}`)).exceptionHistory;
}

function failure(entry, isNewest) {
  return h(
    "details",
    { class: "card failure", key: `${entry.timestamp} ${entry.taskName ?? ""}`, open: isNewest },
    h(
      "summary",
      {},
      h("span", { class: "mono wrap failure-line" }, lastLine(entry)),
      h(
        "span",
        { class: "small muted" },
        [entry.taskName, entry.taskManagerId && `on ${entry.taskManagerId}`].filter(Boolean).join(" "),
        entry.taskName && " · ",
        moment(entry.timestamp),
      ),
    ),
    verbatim(`Traceback of ${entry.exceptionName}`, entry.stacktrace.trimEnd()),
  );
}

export function view({ entries, truncated }, job) {
  if (entries.length === 0) {
    return empty(job.state === "RUNNING" ? "Nothing has gone wrong." : "No failure is known of this job.");
  }
  return [
    entries.map((entry, i) => failure(entry, i === 0)),
    truncated && h("p", { class: "muted" }, `Older ones are not shown: these are the last ${entries.length}.`),
  ];
}
