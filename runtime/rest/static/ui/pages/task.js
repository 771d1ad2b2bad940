// One task of a job, with its attempts.

import { at, getJson, getOptional } from "../api.js";
import { h } from "../dom.js";
import { describe } from "../graph.js";
import { mode } from "../mode.js";
import { badge, card, facts, heading, lasting, moment, table, trail } from "../parts.js";
import { loadSpark, sparkPages } from "./job_spark.js";
import { jobHref, titleOf } from "./job_tables.js";

const ATTEMPTS = 20; // of which the page tells at most; they are counted from 1, as by the command line

export async function load({ job: jobId, task }) {
  const path = `jobs/${at(jobId)}/vertices/${at(task)}`;
  const [job, vertex, logs, spark] = await Promise.all([
    getJson(`jobs/${at(jobId)}`),
    getJson(path),
    getOptional(`jobs/${at(jobId)}/logs`), // which knows the ids of attempts
    loadSpark(jobId),
  ]);
  const attempts = await Promise.all(
    vertex.subtasks.flatMap((subtask) => {
      const first = Math.max(subtask.attempt - ATTEMPTS + 1, 0);
      const before = Array.from({ length: subtask.attempt - first }, (_, i) => subtask.attempt - 1 - i);
      const past = before.map((n) => getOptional(`${path}/subtasks/${subtask.subtask}/attempts/${n}`));
      return [subtask, ...past];
    }),
  );
  const ids = new Map();
  for (const log of logs?.logs ?? []) if (log.task === vertex.name) ids.set(log.attempt, log["attempt-id"]);
  const works = new Map((spark?.attempts ?? []).filter((a) => a["vertex-id"] === task).map((a) => [a.attempt, a]));
  const known = ({ attempt }) => ({ id: ids.get(attempt), spark: works.get(attempt) });
  return { job, vertex, attempts: attempts.filter(Boolean).map((attempt) => ({ ...attempt, ...known(attempt) })) };
}

/** The Spark application of an attempt, and a link into Spark's own pages. */
function sparkOf({ spark }) {
  if (!spark?.application) return "–";
  return [h("code", {}, spark.application), " ", spark.url && sparkPages(spark)];
}

/** A link to the profile of an attempt that runs. */
function profileOf(attempt) {
  const { id, "taskmanager-id": executor } = attempt;
  if (attempt.status !== "RUNNING" || !executor || executor.startsWith("(") || !id) return "–";
  return h("a", { href: `#/taskmanagers/${at(executor, "profile", id)}` }, "Profile");
}

export function view({ job, vertex, attempts }) {
  const node = job.plan.nodes.find((n) => n.id === vertex.id);
  const steps = describe(node?.description ?? "");
  const state = job.vertices.find((v) => v.id === vertex.id)?.status ?? vertex.subtasks[0]?.status;
  const inputs = (node?.inputs ?? []).map((input) => job.vertices.find((v) => v.id === input.id)).filter(Boolean);
  const waiting = job["waiting-for"]?.[vertex.id];
  const ahead = vertex.now - Date.now();
  return [
    trail(["Jobs", "#/jobs"], [titleOf(job), jobHref(job.jid)], [vertex.name]),
    heading(vertex.name, state && badge(state)),
    facts([
      ["Id", h("code", {}, vertex.id)],
      waiting && ["Waiting for", waiting],
      inputs.length > 0 && [
        "Reads from",
        inputs.map((v, i) => [i > 0 && ", ", h("a", { href: jobHref(job.jid, "tasks", v.id) }, v.name)]),
      ],
    ]),
    steps.length > 0 && card("Steps", h("ol", { class: "steps" }, steps.map((step) => h("li", {}, step)))),
    card(
      "Attempts",
      table(
        "Attempts",
        [
          { title: "Attempt", kind: "number", cell: (a) => a.attempt + 1 },
          { title: "State", cell: (a) => badge(a.status) },
          {
            title: "Task executor",
            cell: (a) =>
              a["taskmanager-id"] && !a["taskmanager-id"].startsWith("(")
                ? mode.history ? a["taskmanager-id"] : h("a", { href: `#/taskmanagers/${at(a["taskmanager-id"])}` }, a["taskmanager-id"])
                : "none",
          },
          { title: "Started", cell: (a) => moment(a["start-time"]) },
          { title: "Spark", kind: "wrap", cell: sparkOf },
          { title: "Profile", cell: profileOf },
          { title: "Duration", kind: "number", cell: (a) => lasting(a["start-time"], a["end-time"], ahead) },
        ],
        attempts,
        { key: (a) => `${a.subtask} ${a.attempt}` },
      ),
    ),
  ];
}
