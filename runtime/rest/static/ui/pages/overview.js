// What the cluster is doing now.

import { getJson } from "../api.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { card, heading, meter } from "../parts.js";
import { jobColumns, jobTable, split } from "./job_tables.js";
import { executorTable } from "./task_executors.js";

const RECENT = 8;

export async function load() {
  const [overview, { jobs }, { taskmanagers }] = await Promise.all(
    ["overview", "jobs/overview", "taskmanagers"].map((path) => getJson(path)),
  );
  return { overview, jobs, taskmanagers };
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

export function view({ overview, jobs, taskmanagers }, _parameters, shell) {
  shell.tellStates(jobs);
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
