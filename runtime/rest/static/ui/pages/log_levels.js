// The log levels of the processes, and a form that changes one.

import { getJson, request } from "../api.js";
import { h } from "../dom.js";
import { card, table } from "../parts.js";

const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "INHERITED"];

let said = { text: "", kind: "" };
let busy = false;

export async function load() {
  return (await getJson("log-levels")).processes;
}

function select(id, label, options) {
  const list = options.map(([value, text]) => h("option", { value }, text));
  return h("div", { class: "field", key: id }, h("label", { for: id }, label), h("select", { id, name: id }, list));
}

function form(processes, shell) {
  const go = async (event) => {
    event.preventDefault();
    const { process, logger, level } = event.target.elements;
    const query = new URLSearchParams({ level: level.value, logger: logger.value.trim() || "root" });
    if (process.value) query.set("process", process.value);
    busy = true;
    shell.redraw();
    try {
      const { changes } = await (await request(`log-levels?${query}`, { method: "PATCH" })).json();
      const words = changes.map((change) =>
        change.error ? `${change.process} does not answer` : `${change.process}: ${change.logger} is ${change.level}, it was ${change.was}`,
      );
      said = { text: words.join("\n"), kind: changes.some((change) => change.error) ? "problem" : "" };
    } catch (error) {
      said = { text: error.message, kind: "problem" };
    } finally {
      busy = false;
      shell.refresh();
      shell.redraw();
    }
  };
  return h(
    "form",
    { class: "form", key: "form", on: { submit: go } },
    select("process", "Process", [["", "All that have the logger"], ...processes.map(({ name }) => [name, name])]),
    h(
      "div",
      { class: "field", key: "logger" },
      h("label", { for: "logger" }, "Logger"),
      h("input", { id: "logger", name: "logger", type: "text", maxlength: 200, placeholder: "root", spellcheck: "false", autocomplete: "off" }),
    ),
    select("level", "Level", LEVELS.map((level) => [level, level])),
    h("p", { class: `wrap lines ${said.kind}`, role: "status" }, said.text),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary", disabled: busy }, "Change level")),
  );
}

export function view(processes, shell) {
  const rows = processes.flatMap(({ name, answers, levels }) =>
    answers ? Object.entries(levels).map(([logger, level]) => ({ name, logger, level })) : [{ name, logger: "does not answer", level: "–" }],
  );
  return [
    card("Change a level", h("p", { class: "small muted" }, "It holds until the process ends."), form(processes, shell)),
    card(
      "Levels",
      table(
        "Log levels",
        [
          { title: "Process", kind: "wrap", cell: (row) => row.name },
          { title: "Logger", kind: "mono wrap", cell: (row) => row.logger },
          { title: "Level", cell: (row) => row.level },
        ],
        rows,
        { key: (row) => `${row.name} ${row.logger}` },
      ),
    ),
  ];
}
