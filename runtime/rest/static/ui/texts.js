// Long texts: logs, tracebacks, threads.

import { ApiError, getText } from "./api.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";
import { card, empty, moment, table } from "./parts.js";

/** Text as it is, in a region of its own that scrolls and can be focused. */
export function verbatim(label, text, { log = false } = {}) {
  const kind = log ? "verbatim log" : "verbatim";
  return h("pre", { class: kind, "data-follow": log, tabindex: "0", role: "region", "aria-label": label }, text);
}

const SHOWN_BYTES = 400_000;

/** A log's text; null where there is none. Of a long one the end is kept. */
export async function loadLog(path) {
  try {
    const text = await getText(path);
    return text.length > SHOWN_BYTES ? `… (the end of ${bytes(text.length)})\n${text.slice(-SHOWN_BYTES)}` : text;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

export function logText(label, text) {
  if (text === null) return empty("There is no such log.");
  return text === "" ? empty("The log is empty.") : verbatim(label, text, { log: true });
}

/** A list of log files with links. */
export function logList(files, href) {
  const columns = [
    { title: "Name", cell: (file) => h("a", { href: href(file.name) }, file.name) },
    { title: "Size", kind: "number", cell: (file) => bytes(file.size) },
    { title: "Changed", kind: "wide", cell: (file) => moment(file.mtime) },
  ];
  return card("", table("Logs", columns, files, { key: (file) => file.name, none: "There are no logs." }));
}

/** Threads, each to be opened. */
export function threadDump(dump) {
  if (dump === null) return empty("This server offers no thread dump.");
  return h(
    "div",
    { class: "threads" },
    dump.threadInfos.map((thread) =>
      h(
        "details",
        { key: thread.threadName },
        h("summary", {}, thread.threadName),
        verbatim(thread.threadName, thread.stringifiedThreadInfo),
      ),
    ),
  );
}
