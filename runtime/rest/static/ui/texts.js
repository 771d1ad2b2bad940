// Long texts: logs, tracebacks, threads.

import { ApiError, getText, request } from "./api.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";
import { card, empty, moment, table } from "./parts.js";

/** Text as it is, in a region of its own that scrolls and can be focused. */
export function verbatim(label, text, { log = false } = {}) {
  const kind = log ? "verbatim log" : "verbatim";
  return h("pre", { class: kind, "data-follow": log, tabindex: "0", role: "region", "aria-label": label }, text);
}

const SHOWN = 400_000;
const BEYOND = 999_999_999; // no log is so long: the answer is empty, and says how long it is

let open = null; // the log that is looked at: {path, offset, text, decoder}

/** A log's text as it is now; null where there is none. It is read on from where the last reading ended. */
export async function followLog(path) {
  try {
    if (open?.path !== path) open = await atEnd(path);
    const mine = open;
    const { piece, size } = await readFrom(path, mine.offset);
    if (size < mine.offset) {
      open = await atEnd(path); // it was put aside and begun anew
      return followLog(path);
    }
    mine.offset += piece.length;
    mine.text = (mine.text + mine.decoder.decode(piece, { stream: true })).slice(-SHOWN);
    return mine.text;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

async function atEnd(path) {
  const { size } = await readFrom(path, BEYOND);
  const offset = Math.max(0, size - SHOWN);
  const text = offset > 0 ? `… (the end of ${bytes(size)})\n` : "";
  return { path, offset, text, decoder: new TextDecoder() };
}

async function readFrom(path, offset) {
  const response = await request(`${path}?offset=${offset}`);
  const size = Number(response.headers.get("X-Log-Size"));
  return { piece: new Uint8Array(await response.arrayBuffer()), size };
}

/** A text that is asked for as a whole; null where there is none. */
export async function loadLog(path) {
  try {
    return await getText(path);
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
    dump.pid > 0 && h("p", { class: "small muted" }, `Process ${dump.pid}`),
    dump.threadInfos.map((thread) =>
      h(
        "details",
        { key: thread.threadName },
        h("summary", {}, thread.threadName, thread.state && h("span", { class: "small muted" }, ` ${thread.state.toLowerCase()}`)),
        verbatim(thread.threadName, thread.stringifiedThreadInfo),
      ),
    ),
  );
}
