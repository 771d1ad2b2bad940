// The attempts of a job in Spark, and where Spark's own pages show them.

import { at, getOptional } from "../api.js";
import { h } from "../dom.js";
import { badge, card, copyable, table } from "../parts.js";
import { jobHref } from "./job_tables.js";

const LOOPBACK = ["127.0.0.1", "localhost"]; // the only hosts at which Spark's pages are served

/** What is known of a job's attempts in Spark; null where the server does not offer it. */
export function loadSpark(job) {
  return getOptional(`jobs/${at(job)}/spark`);
}

/** A link to an attempt's work in Spark's own pages, or why there is none. */
export function sparkPages({ url, note }) {
  if (!url) return h("span", { class: "muted" }, note);
  const target = new URL(url);
  if (!LOOPBACK.includes(location.hostname)) {
    const where = `at port ${target.port} of the cluster's machine, for browsers there or through a tunnel`;
    return h("span", { class: "muted" }, `Spark's History Server serves it ${where}`);
  }
  target.hostname = location.hostname; // as another site, it would not get the cookie of a login
  return h("a", { href: target.href }, "Jobs and SQL in Spark");
}

export async function load(job) {
  return loadSpark(job.jid);
}

export function view(spark, job) {
  const columns = [
    { title: "Task", kind: "name", cell: (a) => h("a", { href: jobHref(job.jid, "tasks", a["vertex-id"]) }, a.task) },
    { title: "Attempt", kind: "number", cell: (a) => a.attempt + 1 },
    { title: "State", cell: (a) => badge(a.status) },
    { title: "Application", kind: "mono", cell: (a) => a.application || "–" },
    { title: "Tag of its Spark jobs", cell: (a) => (a.tag ? copyable(a.tag, "Copy") : "–") },
    { title: "Spark's pages", kind: "wrap", cell: sparkPages },
  ];
  return card("Attempts in Spark", table("Attempts in Spark", columns, spark?.attempts ?? [], { key: (a) => a["attempt-id"] }));
}
