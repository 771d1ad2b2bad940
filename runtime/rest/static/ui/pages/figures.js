// The figures of the cluster over time, as its leader has written them down.

import { at, getJson } from "../api.js";
import { binaryCeiling, chart } from "../charts.js";
import { h } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { clusterQuery, mode } from "../mode.js";
import { card, empty, heading, moment, notice, tabs } from "../parts.js";

const HOUR_MS = 3_600_000;
const RANGES = { hour: ["Last hour", HOUR_MS], day: ["Last day", 24 * HOUR_MS], week: ["Last week", 7 * 24 * HOUR_MS] };
const USUAL = "day";
const MOST_JOBS = 12;

export async function load({ range = USUAL, cluster }) {
  const [, length] = RANGES[range] ?? RANGES[USUAL];
  const query = new URLSearchParams({ since: Date.now() - length, ...clusterQuery(cluster) });
  const [figures, { jobs }] = await Promise.all([getJson(`figures?${query}`), getJson("jobs/overview")]);
  return { figures, names: new Map(jobs.map((job) => [job.jid, job.name])) };
}

function rate(value) {
  return value >= 100 ? count(Math.round(value)) : value.toFixed(1);
}

function charts(figures, names) {
  const line = (name, values) => ({ name, points: figures.timestamps.map((at, i) => [at, values[i]]) });
  const has = (values) => values.some((value) => value !== null);
  const used = figures["slots-total"].map((all, i) => (all === null ? null : all - figures["slots-available"][i]));
  return [
    card(
      "The cluster",
      h(
        "div",
        { class: "charts" },
        chart("Slots", [line("in use", used), line("in all", figures["slots-total"])], count),
        chart("Jobs", [line("not over", figures["jobs-running"])], count),
        chart("Requests that wait", [line("requests", figures["pending-slot-requests"])], count),
        chart("Task executors", [line("registered", figures.taskmanagers)], count),
        has(figures["heap-used"]) &&
          chart("Heap of Spark drivers", [line("in use", figures["heap-used"]), line("most", figures["heap-max"])], bytes, binaryCeiling),
        has(figures["rows-per-second"]) && chart("Rows per second", [line("all jobs", figures["rows-per-second"])], rate),
      ),
    ),
    figures.jobs.length > 0 &&
      card(
        "Rows per second by job",
        h(
          "div",
          { class: "charts" },
          figures.jobs
            .slice(-MOST_JOBS)
            .map((job) => chart(`${names.get(job.jid) ?? "forgotten"} (${job.jid.slice(0, 8)})`, [line("in", job["rows-per-second"])], rate)),
        ),
        figures.jobs.length > MOST_JOBS &&
          h("p", { class: "small muted" }, `The last ${MOST_JOBS} of ${plural(figures.jobs.length, "job")}.`),
      ),
  ];
}

/** Links to the clusters of a history that shows several. */
export function clusterTabs(base, chosen) {
  if (mode.clusters.length < 2) return null;
  const names = mode.clusters.map(({ name }) => name);
  return tabs("Clusters", names.map((name) => [at(name), name]), base, at(chosen || names[0]));
}

export function view({ figures, names }, { range = USUAL, cluster }) {
  const base = "#/figures";
  const suffix = cluster ? `/${at(cluster)}` : "";
  const points = figures.timestamps.length;
  return [
    heading("Figures"),
    clusterTabs(`${base}/${range}`, cluster),
    tabs("Time range", Object.entries(RANGES).map(([name, [title]]) => [name + suffix, title]), base, range + suffix),
    figures.damaged > 0 && notice("bad", `${plural(figures.damaged, "line")} of the figures cannot be read, and ${figures.damaged === 1 ? "is" : "are"} left out.`),
    points === 0
      ? empty("No figures were written in this time.")
      : [
          charts(figures, names),
          h("p", { class: "small muted" }, `${plural(points, "point")} since `, moment(figures.timestamps[0]), "; a gap is a time without a leader."),
        ],
  ];
}
