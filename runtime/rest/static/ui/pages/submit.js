// Submitting a PySpark script.

import { getOptional, request } from "../api.js";
import { h } from "../dom.js";
import { card, heading } from "../parts.js";
import { jobHref } from "./job_tables.js";

let problem = "";
let busy = false;

export async function load() {
  // Nothing to ask, but a page is shown only while the server answers.
  return getOptional("config");
}

function field(id, label, help, input) {
  return h(
    "div",
    { class: "field", key: id },
    h("label", { for: id }, label),
    input,
    help && h("p", { class: "small muted", id: `${id}-help` }, help),
  );
}

/** The form as the API takes it: empty fields are left out, arguments are one a line. */
export function formOf(form) {
  const sent = new FormData();
  sent.append("script", form.elements.script.files[0]);
  for (const file of form.elements["py-file"].files) sent.append("py-file", file);
  for (const file of form.elements.requirements.files) sent.append("requirements", file);
  const name = form.elements.name.value.trim();
  if (name) sent.append("name", name);
  for (const line of form.elements.arg.value.split("\n")) if (line.trim()) sent.append("arg", line);
  return sent;
}

export function view(_data, _parameters, shell) {
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
      field("script", "PySpark script", "A Python file. It runs as it is, in a process of its own.", h("input", { id: "script", name: "script", type: "file", accept: ".py", required: true, "aria-describedby": "script-help" })),
      field("arg", "Arguments", "One a line.", h("textarea", { id: "arg", name: "arg", rows: 3, spellcheck: "false", "aria-describedby": "arg-help" })),
      field("name", "Name of the job", "The script's name if it is left empty.", h("input", { id: "name", name: "name", type: "text", maxlength: 200, "aria-describedby": "name-help" })),
      field("py-file", "Python files", "What the script imports (.py, .zip).", h("input", { id: "py-file", name: "py-file", type: "file", multiple: true, "aria-describedby": "py-file-help" })),
      field("requirements", "Requirements", "A file for pip; installed once for each worker.", h("input", { id: "requirements", name: "requirements", type: "file", accept: ".txt", "aria-describedby": "requirements-help" })),
      h("p", { class: "problem wrap", role: "alert" }, problem),
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary", disabled: busy }, busy ? "Uploading…" : "Submit job")),
    ),
    card(
      "From the command line",
      h("p", {}, "Pipelines, packages, archives and jars are submitted there:"),
      h("pre", { class: "verbatim", tabindex: "0", role: "region", "aria-label": "Command" }, "understudy job run [--py-files FILE] [--package WHEEL] SCRIPT [ARGUMENT ...]"),
    ),
  ];
}
