// What the cluster is doing now.

import { getJson } from "../api.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { mode } from "../mode.js";
import { card, heading, meter, notice } from "../parts.js";
import { jobColumns, jobTable, split } from "./job_tables.js";
import { executorTable } from "./task_executors.js";

const RECENT = 8;

export async function load() {
  const [overview, { jobs }, executors, { clusters }] = await Promise.all([
    getJson("overview"),
    getJson("jobs/overview"),
    mode.history ? null : getJson("taskmanagers"),
    mode.history ? getJson("config") : {},
  ]);
  return { overview, jobs, taskmanagers: executors?.taskmanagers ?? [], clusters };
}

function figure(name, value, ...more) {
  const shown = h("dd", {}, h("span", { class: "big" }, value), more);
  return h("div", { class: "figure", key: name }, h("dt", {}, name), shown);
}

/** How many jobs are in a state, as a link to them. */
function inState(state, number) {
  const kind = state === "FAILED" && number > 0 ? "text-bad" : "";
  return number > 0 ? h("a", { href: `#/jobs?state=${state}`, class: kind || "plain" }, count(number)) : count(number);
}

/** What the history of clusters has: nothing of it runs. */
function history({ overview, jobs, clusters }) {
  const { ended } = split(jobs);
  const suspended = jobs.filter((job) => job.state === "SUSPENDED").length;
  return [
    heading("Overview"),
    clusters.flatMap(({ damaged }) => damaged).map((line) => notice("bad", h("p", { class: "wrap" }, line))),
    h(
      "dl",
      { class: "figures" },
      figure("Finished", inState("FINISHED", overview["jobs-finished"])),
      figure("Failed", inState("FAILED", overview["jobs-failed"])),
      figure("Canceled", inState("CANCELED", overview["jobs-cancelled"])),
      figure("Suspended", inState("SUSPENDED", suspended)),
    ),
    suspended > 0 && h("p", { class: "small muted" }, "A suspended job ran when its cluster was stopped or lost. It is shown as it was last seen."),
    card(
      "Recently ended",
      jobTable("Recently ended jobs", ended, "No job is kept.", { columns: jobColumns(ended, true), most: RECENT }),
      ended.length > RECENT && h("p", {}, h("a", { href: "#/jobs" }, `All ${plural(ended.length, "ended job")}`)),
    ),
    card("Read from", h("ul", {}, clusters.map(({ name, directory }) => h("li", { class: "wrap" }, `${name}: `, h("code", {}, directory))))),
  ];
}

export function view(data, _parameters, shell) {
  const { overview, jobs, taskmanagers } = data;
  shell.tellStates(jobs);
  if (mode.history) return history(data);
  const { running, ended } = split(jobs);
  const total = overview["slots-total"];
  const used = total - overview["slots-available"];
  const failed = overview["jobs-failed"];
  const waiting = overview["pending-slot-requests"] ?? 0;
  return [
    heading("Overview"),
    h(
      "dl",
      { class: "figures" },
      figure(
        "Slots in use",
        [count(used), h("span", { class: "of" }, ` of ${count(total)}`)],
        meter(used, total, `${used} of ${total} slots are in use`),
        waiting > 0 && h("span", { class: "small muted" }, `${plural(waiting, "request")} waiting`),
      ),
      figure("Task executors", count(overview.taskmanagers)),
      figure("Running", count(overview["jobs-running"])),
      figure("Finished", inState("FINISHED", overview["jobs-finished"])),
      figure("Failed", inState("FAILED", failed)),
      figure("Canceled", inState("CANCELED", overview["jobs-cancelled"])),
    ),
    card(
      "Running jobs",
      jobTable("Running jobs", running, "No job is running. Submit one to see it here.", {
        columns: jobColumns(running, false),
      }),
    ),
    card(
      "Recently ended",
      jobTable("Recently ended jobs", ended, "No job has ended yet.", {
        columns: jobColumns(ended, true),
        most: RECENT,
      }),
      ended.length > RECENT && h("p", {}, h("a", { href: "#/jobs" }, `All ${plural(ended.length, "ended job")}`)),
    ),
    card("Task executors", executorTable(taskmanagers)),
  ];
}
