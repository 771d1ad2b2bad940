// What the attempts of a job wrote. A log that is being written to is read on from where the last reading ended.

import { ApiError, at, getOptional, request } from "../api.js";
import { h } from "../dom.js";
import { logView } from "../log_view.js";
import { badge, card, empty, table } from "../parts.js";
import { jobHref } from "./job_tables.js";

const SHOWN_CHARACTERS = 400_000;

let open = null; // the log that is looked at: {path, offset, text, decoder, ended}

const pathOf = (job, attempt, log) => `jobs/${at(job.jid, "logs", attempt, log)}`;

export async function load(job, { attempt, log }) {
  if (attempt && log) return { text: await readOn(pathOf(job, attempt, log)) };
  open = null;
  return getOptional(`jobs/${at(job.jid, "logs")}`);
}

async function readOn(path) {
  if (open?.path !== path) open = { path, offset: 0, text: "", decoder: new TextDecoder(), ended: false };
  const mine = open;
  if (mine.ended) return mine.text;
  try {
    const response = await request(`${path}?offset=${mine.offset}`);
    const piece = new Uint8Array(await response.arrayBuffer());
    mine.offset += piece.length;
    mine.ended = response.headers.get("X-Log-Complete") === "true";
    mine.text = (mine.text + mine.decoder.decode(piece, { stream: true })).slice(-SHOWN_CHARACTERS);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
  return mine.text;
}

export function view(data, job, { attempt, log }, shell) {
  if (data === null) return empty("This server offers no logs of jobs.");
  if (attempt && log) {
    return [
      h("p", {}, h("a", { href: jobHref(job.jid, "logs") }, "All logs of the job")),
      logView({ label: log, path: pathOf(job, attempt, log), text: data.text }, shell),
    ];
  }
  return card(
    "",
    table(
      "Logs of the job",
      [
        {
          title: "Log",
          cell: (entry) => h("a", { href: jobHref(job.jid, "logs", entry["attempt-id"], entry.name) }, entry.name),
        },
        { title: "Task", kind: "name", cell: (entry) => entry.task },
        { title: "Attempt", kind: "number", cell: (entry) => entry.attempt + 1 },
        { title: "State", cell: (entry) => badge(entry.status) },
      ],
      data.logs,
      { key: (entry) => `${entry["attempt-id"]} ${entry.name}`, none: "No attempt has written anything yet." },
    ),
  );
}
