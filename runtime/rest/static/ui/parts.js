// The parts that several pages are made of.

import { h, s } from "./dom.js";
import { duration, time } from "./format.js";
import { mode } from "./mode.js";

/** Have a screen reader say something. */
export function announce(text) {
  // An element anew: the same words twice are said twice.
  document.getElementById("announcer").replaceChildren(h("p", {}, text));
}

const TONES = {
  RUNNING: "good-going",
  FINISHED: "good",
  COMPLETED: "good",
  FAILED: "bad",
  FAILING: "bad",
  CANCELED: "ended",
  CANCELLING: "warned",
  CANCELING: "warned",
  RESTARTING: "warned",
  RECONCILING: "warned",
  SUSPENDED: "warned",
};
const TERMINAL = new Set(["FINISHED", "FAILED", "CANCELED"]);
const OVER_IN_HISTORY = "SUSPENDED"; // the cluster ended before the job, and nobody goes on with it

/** Whether nothing of a job or a task in that state runs any more. */
export function isOver(state) {
  return TERMINAL.has(state) || (mode.history && state === OVER_IN_HISTORY);
}

/** A colour's name for a state; what it means is always said in words too. */
export function tone(state) {
  return TONES[state] ?? "waiting";
}

export function badge(state) {
  return h("span", { class: `badge tone-${tone(state)}` }, state);
}

/** A duration that goes on while nothing has ended; the page's clock rewrites it each second. */
export function lasting(start, end, offset = 0) {
  if (!(start > 0)) return h("span", {}, "–");
  if (end > 0) return h("span", {}, duration(end - start));
  return h("span", { class: "lasting", "data-start": start - offset }, duration(Date.now() + offset - start));
}

export function moment(ms) {
  return ms > 0 ? h("time", { datetime: new Date(ms).toISOString(), title: new Date(ms).toString() }, time(ms)) : "–";
}

export function heading(text, ...beside) {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, text), beside);
}

export function trail(...steps) {
  return h(
    "nav",
    { class: "trail", "aria-label": "Breadcrumb" },
    h("ol", {}, steps.map(([text, href]) => h("li", {}, href ? h("a", { href }, text) : text))),
  );
}

/** Links between the parts of one thing. `parts` are [path, title, ...], at `base`/path; the first path is empty. */
export function tabs(label, parts, base, tab) {
  const address = (path) => (path ? `${base}/${path}` : base);
  return h(
    "nav",
    { class: "tabs", "aria-label": label },
    h(
      "ul",
      {},
      parts.map(([path, title]) => {
        const current = path === (tab ?? "") ? "page" : undefined;
        return h("li", { key: path }, h("a", { href: address(path), "aria-current": current }, title));
      }),
    ),
  );
}

/** Links of which one is chosen. `items` are [text, href, whether it is chosen]. */
export function choices(label, items) {
  return h(
    "nav",
    { class: "choices", "aria-label": label, key: label },
    h(
      "ul",
      {},
      items.map(([text, href, chosen]) => h("li", {}, h("a", { href, "aria-current": chosen ? "true" : undefined }, text))),
    ),
  );
}

/** An id as a button that copies the whole of it; `shown` is what of it is seen. */
export function copyable(id, shown = id) {
  const click = async () => announce((await copy(id)) ? `Copied ${id}` : "This browser does not let a page copy");
  const title = `Copy the id ${id}`;
  return h("button", { type: "button", class: "id", title, "aria-label": title, on: { click } }, h("code", {}, shown));
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Only a page by https, or of this machine, has a clipboard.
    const back = document.activeElement;
    const field = h("textarea", { class: "unseen" }, text);
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    back?.focus({ preventScroll: true });
    return copied;
  }
}

export function card(title, ...children) {
  return h("section", { class: "card", key: title }, title && h("h2", {}, title), children);
}

/** Names and values. */
export function facts(entries) {
  return h(
    "dl",
    { class: "facts" },
    entries.filter(Boolean).map(([name, ...value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, value))),
  );
}

export function empty(text, ...more) {
  return h("p", { class: "empty" }, text, more);
}

/**
 * A table. `columns` are {title, cell(row), kind, sort}; kind: "number", "name", "mono", "wrap", or several of them.
 * `sorting` (see address.js) makes the titles of columns with `sort` links, and says which order the rows are in.
 * The first column names the row. It scrolls by itself when it is too wide, and may then be focused. On narrow screens
 * each row is a block of its own, whose values have the titles beside them; the roles are said because of that.
 */
export function table(caption, columns, rows, { key, none = "None.", sorting } = {}) {
  if (rows.length === 0) return empty(none);
  return h(
    "div",
    { class: "scroller", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { role: "table", class: sorting && "sortable" },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((c) => title(c, sorting)))),
      h(
        "tbody",
        { role: "rowgroup" },
        rows.map((row, number) =>
          h(
            "tr",
            { key: key ? key(row) : number, role: "row" },
            columns.map((c, i) =>
              i === 0
                ? h("th", { scope: "row", role: "rowheader", class: c.kind }, c.cell(row))
                : h("td", { role: "cell", class: c.kind, "data-title": c.title }, c.cell(row)),
            ),
          ),
        ),
      ),
    ),
  );
}

function title(column, sorting) {
  const name = sorting && column.sort?.name;
  const order = name && name === sorting.by ? (sorting.down ? "descending" : "ascending") : undefined;
  return h(
    "th",
    { scope: "col", role: "columnheader", class: column.kind, "aria-sort": order },
    name ? h("a", { href: sorting.href(name) }, column.title) : column.title,
  );
}

const JOB_ID = /\bjobmaster-([0-9a-f]{32})\b/;

/** A text in which the id of a JobMaster's job is a link to that job. */
export function linked(text) {
  const found = JOB_ID.exec(text);
  if (!found) return text;
  const [whole, id] = found;
  const at = found.index + whole.length - id.length;
  return [text.slice(0, at), h("a", { href: `#/jobs/${id}` }, id), text.slice(at + id.length)];
}

/** How much of a whole is taken, as a bar; the numbers are said beside it. */
export function meter(used, total, label, kind = "meter-used") {
  const share = total > 0 ? Math.min(used / total, 1) : 0;
  return s(
    "svg",
    { class: "meter", role: "img", "aria-label": label, height: 6, width: "100%" },
    s("rect", { class: "meter-all", width: "100%", height: 6, rx: 3 }),
    share > 0 && s("rect", { class: kind, width: `${(share * 100).toFixed(1)}%`, height: 6, rx: 3 }),
  );
}

/** The same with words below it. */
export function gauge(used, total, words, kind) {
  return h("span", { class: "counts" }, meter(used, total, words, kind), h("span", { class: "small" }, words));
}

/** How many of the tasks are in which state, as one bar and in words. */
export function taskCounts(tasks) {
  const entries = Object.entries(tasks).filter(([name, n]) => name !== "total" && n > 0);
  const total = entries.reduce((sum, [, n]) => sum + n, 0);
  if (total === 0) return h("span", { class: "muted" }, "none yet");
  const words = entries.map(([name, n]) => `${n} ${name.toLowerCase()}`).join(", ");
  let x = 0;
  const bars = entries.map(([name, n]) => {
    const rect = s("rect", {
      class: `fill-${tone(name.toUpperCase())}`,
      x: `${((x / total) * 100).toFixed(2)}%`,
      width: `${((n / total) * 100).toFixed(2)}%`,
      height: 6,
    });
    x += n;
    return rect;
  });
  return h(
    "span",
    { class: "counts" },
    s("svg", { class: "meter", width: "100%", height: 6, "aria-hidden": "true" }, bars),
    h("span", { class: "small" }, words),
  );
}

export function notice(kind, ...children) {
  return h("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "note" }, children);
}

/** What a list of {key, value} says, as a table. */
export function configuration(entries) {
  return table(
    "Configuration",
    [
      { title: "Key", kind: "mono", cell: (entry) => entry.key },
      { title: "Value", kind: "mono wrap", cell: (entry) => entry.value },
    ],
    entries,
    { key: (entry) => entry.key },
  );
}
