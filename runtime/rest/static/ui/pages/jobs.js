// All jobs.

import { getJson } from "../api.js";
import { h } from "../dom.js";
import { card, heading } from "../parts.js";
import { jobTable, split } from "./job_tables.js";

const STEP = 100;

// What is searched for, and how many are shown: kept while one looks at a job and comes back.
let words = "";
let shown = STEP;

export async function load() {
  return (await getJson("jobs/overview")).jobs;
}

export function view(jobs, _parameters, shell) {
  shell.tellStates(jobs);
  const sought = words.trim().toLowerCase();
  const found = jobs.filter((job) => `${job.name}\n${job.jid}\n${job.state}`.toLowerCase().includes(sought));
  const { running, ended } = split(found);
  const more = () => {
    shown += STEP;
    shell.redraw();
  };
  const missed = `No job here has “${words.trim()}” in its name, id or state.`;
  return [
    heading(
      "Jobs",
      h(
        "label",
        { class: "search" },
        h("span", { class: "unseen" }, "Filter by name, id or state"),
        h("input", {
          type: "search",
          placeholder: "Filter by name, id or state",
          value: words,
          on: {
            input: (event) => {
              words = event.target.value;
              shell.redraw();
            },
          },
        }),
      ),
    ),
    card(`Running (${running.length})`, jobTable("Running jobs", running, sought ? missed : "No job is running.")),
    card(`Ended (${ended.length})`, [
      jobTable("Ended jobs", ended.slice(0, shown), sought ? missed : "No job has ended."),
      ended.length > shown && h("p", {}, h("button", { type: "button", on: { click: more } }, `Show ${STEP} more`)),
    ]),
  ].map((node, i) => {
    node.key = `part ${i}`; // the titles count, and so are no identity
    return node;
  });
}
