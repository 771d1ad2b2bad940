// A log that is looked at: found in, filtered by lines, downloaded as a whole.

import { request } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { announce, empty } from "./parts.js";
import { verbatim } from "./texts.js";

const MOST_FOUND = 5000;

// What is searched for in the log of that path; `current` is which of the matches is looked at.
let search = { path: "", words: "", only: false, current: 0 };
let downloading = false;
let problem = "";

/** Where the words are in a text, in either case: [start, end] of each, at most `MOST_FOUND`. */
export function matches(text, words) {
  if (words === "") return [];
  const found = [];
  for (const match of text.matchAll(pattern(words))) {
    found.push([match.index, match.index + match[0].length]);
    if (found.length === MOST_FOUND) break;
  }
  return found;
}

/** The lines of a text that have the words in them. */
export function linesWith(text, words) {
  const sought = pattern(words);
  return text
    .split("\n")
    .filter((line) => line.search(sought) >= 0)
    .join("\n");
}

function pattern(words) {
  return new RegExp(words.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), "gi");
}

/**
 * A log with the means to search it and to download it.
 * @param label what it is called, and its file when it is downloaded.
 * @param path where it is read, from an `offset` on.
 * @param text what is shown of it; null where there is none.
 */
export function logView({ label, path, text }, shell) {
  if (text === null) return empty("There is no such log.");
  if (text === "") return empty("The log is empty.");
  if (search.path !== path) {
    search = { path, words: "", only: false, current: 0 };
    problem = "";
  }
  const { words, only } = search;
  const shown = only && words ? linesWith(text, words) : text;
  const found = matches(shown, words);
  search.current = Math.max(0, Math.min(search.current, found.length - 1));
  const step = (by) => {
    search.current = (search.current + by + found.length) % Math.max(found.length, 1);
    shell.redraw();
    queueMicrotask(() => reveal(found[search.current]));
  };
  const type = (event) => {
    search.words = event.target.value;
    search.current = 0;
    shell.redraw();
    queueMicrotask(() => reveal(matches(shownText(), search.words)[0]));
  };
  const press = (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    if (found.length) step(event.shiftKey ? -1 : 1);
  };
  const choose = (event) => {
    search.only = event.target.checked;
    search.current = 0;
    shell.redraw();
  };
  queueMicrotask(() => mark(found)); // when it is in the document
  const button = (title, on, disabled) => h("button", { type: "button", disabled, on: { click: on } }, title);
  return h(
    "div",
    { class: "log-view", key: path },
    h(
      "div",
      { class: "log-tools" },
      h(
        "label",
        { class: "search" },
        h("span", { class: "unseen" }, "Find in the log"),
        h("input", { type: "search", placeholder: "Find in the log", value: words, on: { input: type, keydown: press } }),
      ),
      h("span", { class: "small muted", role: "status" }, told(words, found)),
      button("Previous", () => step(-1), found.length === 0),
      button("Next", () => step(1), found.length === 0),
      h("label", { class: "choice" }, h("input", { type: "checkbox", on: { change: choose } }), "Only lines with it"),
      button(downloading ? "Downloading…" : "Download", () => download(label, path, shell), downloading),
    ),
    h("p", { class: "problem wrap", role: "alert" }, problem),
    verbatim(label, shown, { log: true }),
  );
}

function told(words, found) {
  if (words === "") return "";
  if (found.length === 0) return "not found";
  return `${count(search.current + 1)} of ${count(found.length)}${found.length === MOST_FOUND ? " or more" : ""}`;
}

function textNode() {
  return document.querySelector(".log-view .verbatim")?.firstChild ?? null;
}

function shownText() {
  return textNode()?.data ?? "";
}

function rangeOf([start, end]) {
  const node = textNode();
  const range = new Range();
  range.setStart(node, Math.min(start, node.length));
  range.setEnd(node, Math.min(end, node.length));
  return range;
}

/** Colour what was found. A browser that has no highlights shows the matches by scrolling to them alone. */
function mark(found) {
  if (!CSS.highlights) return;
  CSS.highlights.clear();
  if (!textNode() || found.length === 0) return;
  const ranges = found.map(rangeOf);
  CSS.highlights.set("found", new Highlight(...ranges));
  const current = new Highlight(ranges[search.current]);
  current.priority = 1;
  CSS.highlights.set("current", current);
}

function reveal(match) {
  if (!match || !textNode()) return;
  const box = textNode().parentNode;
  const [place, frame] = [rangeOf(match).getBoundingClientRect(), box.getBoundingClientRect()];
  box.scrollTop += place.top - frame.top - box.clientHeight / 2;
  if (place.left < frame.left || place.right > frame.right) box.scrollLeft += place.left - frame.left - box.clientWidth / 2;
}

async function download(label, path, shell) {
  downloading = true;
  problem = "";
  shell.redraw();
  try {
    const url = URL.createObjectURL(await wholeLog(path));
    h("a", { href: url, download: /\.\w+$/.test(label) ? label : `${label}.log` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    announce(`${label} is downloaded`);
  } catch (error) {
    problem = `${label} cannot be downloaded: ${error.message}`;
  } finally {
    downloading = false;
    shell.redraw();
  }
}

/** All of a log, piece by piece. The token goes along as a header, so the address of the download is one of this page's. */
async function wholeLog(path) {
  const pieces = [];
  let offset = 0;
  for (;;) {
    // A piece takes as long as it takes.
    const response = await request(`${path}?offset=${offset}`, { signal: new AbortController().signal });
    const piece = await response.arrayBuffer();
    pieces.push(piece);
    offset += piece.byteLength;
    const size = Number(response.headers.get("X-Log-Size"));
    const isWhole = response.headers.get("X-Log-Complete") === "true" || (size > 0 && offset >= size);
    if (piece.byteLength === 0 || isWhole) return new Blob(pieces, { type: "text/plain" });
  }
}
