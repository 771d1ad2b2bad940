// One job: what all its parts have in common, and which part is shown.

import { at, getJson, request } from "../api.js";
import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { badge, copyable, facts, heading, isOver, lasting, moment, tabs, trail } from "../parts.js";
import { jobHref, kindOf, titleOf } from "./job_tables.js";
import * as checkpoints from "./job_checkpoints.js";
import * as configuration from "./job_configuration.js";
import * as exceptions from "./job_exceptions.js";
import * as graph from "./job_graph.js";
import * as logs from "./job_logs.js";
import * as spark from "./job_spark.js";
import * as streaming from "./job_streaming.js";
import * as times from "./job_timeline.js";

// Each has load(job, parameters) and view(data, job, parameters).
const PARTS = [
  ["", "Graph", graph],
  ["streaming", "Streaming", streaming],
  ["timeline", "Timeline", times],
  ["exceptions", "Exceptions", exceptions],
  ["logs", "Logs", logs],
  ["spark", "Spark", spark],
  ["checkpoints", "Checkpoints", checkpoints],
  ["configuration", "Configuration", configuration],
];

function partOf(tab) {
  return PARTS.find(([name]) => name === (tab ?? "")) ?? PARTS[0];
}

export async function load(parameters) {
  const job = await getJson(`jobs/${at(parameters.job)}`);
  return { job, part: await partOf(parameters.tab)[2].load(job, parameters) };
}

function cancelButton(job, shell) {
  const busy = job.state === "CANCELLING";
  const ask = () =>
    confirm({
      title: "Cancel this job?",
      text: `“${titleOf(job)}” stops, and what it has not written by then is lost.`,
      verb: "Cancel the job",
      act: async () => {
        await request(`jobs/${at(job.jid)}?mode=cancel`, { method: "PATCH" });
        shell.announce(`${job.name} is being cancelled`);
        shell.refresh();
      },
    });
  return h(
    "button",
    { type: "button", class: "danger", disabled: busy, on: { click: ask } },
    busy ? "Cancelling…" : "Cancel job",
  );
}

/** What the first task of a job waits for while none runs. The graph says it of each task. */
function waitsFor(job) {
  if (job.vertices.some((vertex) => ["DEPLOYING", "INITIALIZING", "RUNNING"].includes(vertex.status))) return "";
  return job.vertices.map((vertex) => job["waiting-for"]?.[vertex.id]).find(Boolean);
}

export function view({ job, part }, parameters, shell) {
  shell.tellStates([job]);
  const [name, , page] = partOf(parameters.tab);
  const ended = job["end-time"] > 0;
  const isStreaming = job["job-type"] === "STREAMING";
  const waits = waitsFor(job);
  return [
    trail(["Jobs", "#/jobs"], [titleOf(job)]),
    heading(job.name || job.jid, badge(job.state), !isOver(job.state) && cancelButton(job, shell)),
    facts([
      ["Id", h("a", { href: jobHref(job.jid) }, h("code", {}, job.jid)), copyable(job.jid, "")],
      ["Kind", kindOf(job)],
      job.owner && ["Owner", job.owner],
      job["trace-id"] && ["Trace", job["trace-id"]],
      ["Started", moment(job["start-time"])],
      ended && ["Ended", moment(job["end-time"])],
      ["Duration", lasting(job["start-time"], job["end-time"], job.now - Date.now())],
      waits && ["Waiting for", waits],
    ]),
    tabs("Parts of the job", PARTS.filter(([part]) => part !== "streaming" || isStreaming || name === part), jobHref(job.jid), name),
    // A key of its own: nothing of one part is taken over by another.
    h("div", { class: "part", key: `part ${name}` }, page.view(part, job, parameters, shell)),
  ];
}
