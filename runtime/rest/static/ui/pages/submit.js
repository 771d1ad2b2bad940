// Submitting a PySpark script.

import { getOptional, request } from "../api.js";
import { h } from "../dom.js";
import { card, heading } from "../parts.js";
import { verbatim } from "../texts.js";
import { jobHref } from "./job_tables.js";

let problem = "";
let busy = false;

export async function load() {
  // Nothing to ask, but a page is shown only while the server answers.
  return getOptional("config");
}

function field(id, label, help, tag, attributes) {
  const input = h(tag, { id, name: id, "aria-describedby": `${id}-help`, ...attributes });
  const hint = h("p", { class: "small muted", id: `${id}-help` }, help);
  return h("div", { class: "field", key: id }, h("label", { for: id }, label), input, hint);
}

const FIELDS = [
  [
    "script",
    "PySpark script",
    "A Python file. It runs as it is, in a process of its own.",
    "input",
    { type: "file", accept: ".py", required: true },
  ],
  ["arg", "Arguments", "One a line.", "textarea", { rows: 3, spellcheck: "false" }],
  ["name", "Name of the job", "The script's name if it is left empty.", "input", { type: "text", maxlength: 200 }],
  ["py-file", "Python files", "What the script imports (.py, .zip).", "input", { type: "file", multiple: true }],
  [
    "requirements",
    "Requirements",
    "A file for pip; installed once for each worker.",
    "input",
    { type: "file", accept: ".txt" },
  ],
  [
    "savepoint",
    "Savepoint to begin from",
    "Its directory on the cluster's machine; each streaming query goes on from the state under its name.",
    "input",
    { type: "text", maxlength: 4096, spellcheck: "false" },
  ],
];
const COMMAND = "understudy job run [--py-files FILE] [--package WHEEL] SCRIPT [-- ARGUMENT ...]";

/** The form as the API takes it: empty fields are left out, arguments are one a line. */
export function formOf(form) {
  const sent = new FormData();
  sent.append("script", form.elements.script.files[0]);
  for (const file of form.elements["py-file"].files) sent.append("py-file", file);
  for (const file of form.elements.requirements.files) sent.append("requirements", file);
  const name = form.elements.name.value.trim();
  if (name) sent.append("name", name);
  const savepoint = form.elements.savepoint.value.trim();
  if (savepoint) sent.append("savepoint", savepoint);
  for (const line of form.elements.arg.value.split("\n")) if (line.trim()) sent.append("arg", line);
  return sent;
}

export function view(_data, { savepoint }, shell) {
  const go = async (event) => {
    event.preventDefault();
    busy = true;
    problem = "";
    shell.redraw();
    try {
      const response = await request("scripts", {
        method: "POST",
        body: formOf(event.target),
        signal: new AbortController().signal, // an upload takes as long as it takes
      });
      const { jobid } = await response.json();
      shell.announce("The job is submitted");
      shell.goTo(jobHref(jobid));
    } catch (error) {
      problem = error.message;
    } finally {
      busy = false;
      shell.redraw();
    }
  };
  return [
    heading("Submit"),
    h(
      "form",
      { class: "card form", key: "form", on: { submit: go } },
      FIELDS.map(([id, label, help, tag, attributes]) =>
        field(id, label, help, tag, id === "savepoint" ? { ...attributes, value: savepoint } : attributes),
      ),
      h("p", { class: "problem wrap", role: "alert" }, problem),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "submit", class: "primary", disabled: busy }, busy ? "Uploading…" : "Submit job"),
      ),
    ),
    card(
      "From the command line",
      h("p", {}, "Pipelines, packages, archives and jars are submitted there:"),
      verbatim("Command", COMMAND),
    ),
  ];
}
