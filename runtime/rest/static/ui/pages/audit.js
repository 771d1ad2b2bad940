// The audit log: who changed something, and who was refused. Only admins see it.

import { ApiError, getJson } from "../api.js";
import { h } from "../dom.js";
import { clusterQuery } from "../mode.js";
import { card, heading, moment, notice, table } from "../parts.js";
import { clusterTabs } from "./figures.js";
import { jobHref } from "./job_tables.js";

const STEP = 100;
const JOB_ID = /^[0-9a-f]{32}$/;

// What is looked for, and the pages behind the first: kept while one looks at a job and comes back.
let wanted = { user: "", job: "", since: "", until: "" };
let older = { key: "", lines: [], next: null, busy: false };

function queryOf(cluster) {
  const query = new URLSearchParams({ limit: STEP, ...clusterQuery(cluster) });
  for (const [name, value] of Object.entries(wanted)) {
    const at = name === "since" || name === "until" ? new Date(value).getTime() : value.trim();
    if (value && !Number.isNaN(at)) query.set(name, at);
  }
  return query;
}

export async function load({ cluster }) {
  try {
    const query = queryOf(cluster);
    const page = await getJson(`audit?${query}`);
    if (older.key !== query.toString()) older = { key: query.toString(), lines: [], next: null, busy: false };
    return page;
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return { refused: error.message };
    throw error;
  }
}

function field(name, label, type, placeholder) {
  return h(
    "div",
    { class: "field", key: name },
    h("label", { for: name }, label),
    h("input", { id: name, name, type, value: wanted[name], placeholder, maxlength: 200, spellcheck: "false", autocomplete: "off" }),
  );
}

function filters(shell) {
  const look = (event) => {
    event.preventDefault();
    const { user, job, since, until } = event.target.elements;
    wanted = { user: user.value, job: job.value, since: since.value, until: until.value };
    shell.refresh();
  };
  return h(
    "form",
    { class: "form filters", key: "filters", on: { submit: look } },
    field("user", "User", "text", "any"),
    field("job", "Job or other target", "text", "any"),
    field("since", "From", "datetime-local"),
    field("until", "To", "datetime-local"),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "Filter")),
  );
}

function whose(line) {
  if (line.user) return line.user;
  return h("span", { class: "muted" }, line.role ? "the cluster's own token" : "unauthenticated");
}

function target(line) {
  return line.target.split(" ").map((word, i) => [i > 0 && " ", JOB_ID.test(word) ? h("a", { href: jobHref(word) }, word) : word]);
}

export function view(page, { cluster }, shell) {
  if (page.refused) return [heading("Audit"), notice("bad", page.refused)];
  const next = older.next ?? page.next;
  const more = async () => {
    older.busy = true;
    shell.redraw();
    try {
      const query = queryOf(cluster);
      query.set("after", next);
      const found = await getJson(`audit?${query}`);
      older.lines.push(...found.lines);
      older.next = found.next;
    } catch (error) {
      shell.announce(error.message);
    } finally {
      older.busy = false;
      shell.redraw();
    }
  };
  const columns = [
    { title: "Time", cell: (line) => moment(line["at-ms"]) },
    { title: "User", kind: "name", cell: whose },
    { title: "Action", kind: "mono wrap", cell: (line) => line.action },
    { title: "Target", kind: "mono wrap", cell: target },
    { title: "Outcome", cell: (line) => line.outcome },
    { title: "Reason", kind: "wrap", cell: (line) => line.reason || "–" },
    { title: "From", kind: "mono wrap", cell: (line) => line.source },
  ];
  const seen = new Set();
  const lines = [...page.lines, ...older.lines].filter((line) => {
    const key = JSON.stringify(line);
    return !seen.has(key) && seen.add(key);
  });
  return [
    heading("Audit"),
    clusterTabs("#/audit", cluster),
    card("Filter", filters(shell)),
    page.damaged > 0 && notice("bad", `${page.damaged} lines of the audit log cannot be read, and are left out.`),
    card(
      "Changes and refusals, the newest first",
      table("Audit log", columns, lines, { key: (line) => JSON.stringify(line), none: "No line is about that." }),
      next && h("p", {}, h("button", { type: "button", disabled: older.busy, on: { click: more } }, `Show ${STEP} older`)),
    ),
  ];
}
