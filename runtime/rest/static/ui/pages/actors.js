// The actors of all processes: a tree of processes and what lives in each; mailboxes, rates, dead letters.

import { getJson } from "../api.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { card, heading, linked, notice, table } from "../parts.js";

let before = null; // the answer before this one, of which rates are made

export async function load() {
  const told = await getJson("actors");
  if (before?.timestamp !== told.timestamp) {
    told.rates = ratesOf(before, told);
    before = told;
  } else told.rates = before.rates;
  return told;
}

/** Messages per second of each actor, by its process and path, between two answers. */
export function ratesOf(earlier, later) {
  const rates = new Map();
  const seconds = (later.timestamp - (earlier?.timestamp ?? later.timestamp)) / 1000;
  if (!(seconds > 0)) return rates;
  const known = new Map(entries(earlier));
  for (const [key, messages] of entries(later)) {
    // Fewer than before: another process took its place.
    if (known.has(key) && messages >= known.get(key)) rates.set(key, (messages - known.get(key)) / seconds);
  }
  return rates;
}

function entries(told) {
  return told.processes.flatMap((process) =>
    process.actors.map((actor) => [keyOf(process, actor), actor.messages]),
  );
}

function keyOf(process, actor) {
  return `${process.name} ${process.pid} ${actor.path}`;
}

/** The rows of the tree: each process, and below it its actors. */
function rowsOf(told) {
  return told.processes.flatMap((process) => [
    { key: process.name, process },
    ...process.actors.map((actor) => ({
      key: keyOf(process, actor),
      actor,
      rate: told.rates.get(keyOf(process, actor)),
    })),
  ]);
}

function nameOf({ process, actor }) {
  if (actor) return h("span", { class: "branch mono" }, linked(actor.path));
  return [h("strong", {}, linked(process.name)), " ", !process.answers && h("span", { class: "badge tone-bad" }, "does not answer")];
}

function kindOf({ process, actor }) {
  if (actor) return [actor.kind, " ", actor.epoch > 0 && h("span", { class: "badge tone-good" }, `epoch ${actor.epoch}`)];
  return process.answers ? plural(process.connections, "connection") : "–";
}

function backlog({ process, actor }) {
  const waiting = actor ? actor.mailbox : process.actors.reduce((sum, each) => sum + each.mailbox, 0);
  return h("span", { class: waiting > 0 ? "text-warned-word" : "" }, count(waiting));
}

function deadLetters({ process, actor }) {
  if (actor || !process.answers) return "";
  const letters = process["dead-letters"];
  return h("span", { class: letters > 0 ? "text-bad" : "" }, count(letters));
}

export function view(told) {
  const silent = told.processes.filter((process) => !process.answers);
  const actors = told.processes.flatMap((process) => process.actors);
  return [
    heading("Actors", h("span", { class: "muted" }, `${plural(actors.length, "actor")} in ${plural(told.processes.length, "process", "processes")}`)),
    silent.length > 0 &&
      notice("bad", `${silent.map((process) => process.name).join(", ")}: no answer. It has ended, stands still, or is being started.`),
    card(
      "",
      table(
        "Actors by process",
        [
          { title: "Actor", kind: "wrap", cell: nameOf },
          { title: "Kind", kind: "wrap", cell: kindOf },
          { title: "Mailbox", kind: "number", cell: backlog },
          { title: "Handlers", kind: "number", cell: (row) => (row.actor ? count(row.actor.handlers) : "") },
          { title: "Messages", kind: "number", cell: (row) => (row.actor ? count(row.actor.messages) : "") },
          { title: "Per second", kind: "number", cell: (row) => (row.rate === undefined ? "" : row.rate.toFixed(1)) },
          { title: "Dead letters", kind: "number", cell: deadLetters },
        ],
        rowsOf(told),
        { key: (row) => row.key, none: "No process is known." },
      ),
      h("p", { class: "small muted" }, "Mailbox: messages whose handlers have not begun. Dead letters: messages for actors that are not there, since the process began."),
    ),
  ];
}
