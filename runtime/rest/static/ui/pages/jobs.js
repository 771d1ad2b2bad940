// All jobs: found by words, state and the time of their end, in an order.

import { sortingOf, withQuery } from "../address.js";
import { getJson } from "../api.js";
import { h } from "../dom.js";
import { mode } from "../mode.js";
import { card, choices, heading, isOver } from "../parts.js";
import { jobColumns, jobTable, split } from "./job_tables.js";

const PATH = "#/jobs";
const STEP = 100;
const HOUR_MS = 3_600_000;
const RANGES = [
  ["hour", "last hour", HOUR_MS],
  ["day", "last day", 24 * HOUR_MS],
];

// What is searched for, and how many are shown: kept while one looks at a job and comes back.
let words = "";
let shown = STEP;

export async function load() {
  return (await getJson("jobs/overview")).jobs;
}

/** The jobs that the words and the time range leave; of those that run every one is in the range. */
function matching(jobs, range) {
  const sought = words.trim().toLowerCase();
  const since = range ? Date.now() - range[2] : 0;
  return jobs.filter((job) => {
    const text = `${job.name}\n${job.jid}\n${job.state}\n${job.owner}`.toLowerCase();
    return text.includes(sought) && (!isOver(job.state) || job["end-time"] >= since);
  });
}

function states(found, query, state) {
  const counts = new Map(state ? [[state, 0]] : []);
  for (const job of found) counts.set(job.state, (counts.get(job.state) ?? 0) + 1);
  const item = ([name, number]) => [`${name} ${number}`, withQuery(PATH, query, { state: name }), name === state];
  const all = [`All ${found.length}`, withQuery(PATH, query, { state: null }), !state];
  const inOrder = [...counts].sort(([a], [b]) => isOver(a) - isOver(b) || a.localeCompare(b));
  return choices("Jobs by state", [all, ...inOrder.map(item)]);
}

function ranges(query, range) {
  const item = (each) => [each[1], withQuery(PATH, query, { ended: each[0] }), each === range];
  const all = ["all", withQuery(PATH, query, { ended: null }), !range];
  return choices("Ended within", [...RANGES.map(item), all]);
}

function search(shell) {
  return h(
    "label",
    { class: "search" },
    h("span", { class: "unseen" }, "Filter by name, id, state or owner"),
    h("input", {
      type: "search",
      placeholder: "Name, id, state or owner",
      value: words,
      on: {
        input: (event) => {
          words = event.target.value;
          shell.redraw();
        },
      },
    }),
  );
}

export function view(jobs, { query }, shell) {
  shell.tellStates(jobs);
  const state = query.get("state");
  const range = RANGES.find(([name]) => name === query.get("ended"));
  const found = matching(jobs, range);
  const { running, ended } = split(state ? found.filter((job) => job.state === state) : found);
  const isFiltered = Boolean(words.trim() || state);
  const more = () => {
    shown += STEP;
    shell.redraw();
  };
  const part = (caption, of, hasEnded, none, most) => {
    const columns = jobColumns(of, hasEnded);
    const sorting = sortingOf(columns, PATH, query, hasEnded ? "-ended" : "-started");
    const missed = words.trim() ? `No job here has “${words.trim()}” in its name, id, state or owner.` : "No job here is in this state.";
    return jobTable(caption, of, isFiltered ? missed : none, { columns, sorting, most });
  };
  return [
    heading("Jobs", search(shell)),
    states(found, query, state),
    !mode.history &&
      (!state || running.length > 0 || !isOver(state)) &&
      card(`Running (${running.length})`, part("Running jobs", running, false, "No job is running.")),
    (!state || isOver(state)) &&
      card(
        `Ended (${ended.length})`,
        ranges(query, range),
        part("Ended jobs", ended, true, range ? `No job has ended in the ${range[1]}.` : "No job has ended.", shown),
        ended.length > shown && h("p", {}, h("button", { type: "button", on: { click: more } }, `Show ${STEP} more`)),
      ),
  ].map((node, i) => {
    if (node) node.key = `part ${i}`; // the titles count, and so are no identity
    return node;
  });
}
