// Checkpoints and savepoints that are asked for here: triggered once, then asked after until it is known what became of it.

import { ApiError, at, getJson, request } from "../api.js";
import { confirm } from "../dialog.js";
import { h } from "../dom.js";
import { isOver } from "../parts.js";
import { jobHref } from "./job_tables.js";

// By job: {kind, what, id, ended, words, bad, by}, by: the job that does it, if one does. The id is chosen here, so that asking again is asking once.
const asked = new Map();

function triggerId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Ask what became of what was asked for last; to be called whenever the job is asked for. */
export async function follow(jobId) {
  const mine = asked.get(jobId);
  if (!mine?.id || mine.ended) return;
  try {
    const { status, operation } = await getJson(`jobs/${at(jobId, mine.kind, mine.id)}`);
    if (status.id !== "COMPLETED") return;
    const failure = operation["failure-cause"] ?? operation.failureCause;
    Object.assign(mine, { ended: true, bad: Boolean(failure) });
    if (failure) mine.words = `${mine.what} failed: ${failure["stack-trace"]}`;
    else mine.words = `${mine.what}: ${operation.location ?? `number ${operation.checkpointId}`}`;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 503) return; // nobody knows at present
    Object.assign(mine, { ended: true, bad: true, words: error.message });
  }
}

async function trigger(job, path, kind, what, shell, wanted = {}) {
  const mine = { kind, what, ended: false, bad: false, words: `${what} is being made…` };
  const id = triggerId();
  try {
    const response = await request(`jobs/${at(job.jid)}/${path}`, {
      method: "POST",
      body: JSON.stringify({ ...wanted, triggerId: id }),
      headers: { "Content-Type": "application/json" },
    });
    mine.by = (await response.json())["rescale-job"];
  } catch (error) {
    asked.set(job.jid, { ...mine, ended: true, bad: true, words: error.message });
    shell.redraw();
    throw error;
  }
  asked.set(job.jid, { ...mine, id });
  shell.announce(mine.words);
  shell.refresh();
}

/** The question whether a job goes back to one of its checkpoints or savepoints, and the going back. */
export function rollBack(job, checkpoint, shell) {
  const name = checkpoint.is_savepoint ? `savepoint ${checkpoint.external_path}` : `checkpoint ${checkpoint.id}`;
  const id = triggerId();
  confirm({
    title: "Roll this job back?",
    text: `The tasks of “${job.name}” restart from its ${name}. What its queries have put out since then is taken back from file sinks, and is there twice in sinks that take what they get.`,
    choice: "Give the queries new ids: sinks that remember the batches of a query take the repeated ones again",
    verb: "Roll back",
    act: async (newQueryId) => {
      await request(`jobs/${at(job.jid)}/rollback`, {
        method: "POST",
        body: JSON.stringify({ triggerId: id, target: checkpoint.is_savepoint ? checkpoint.external_path : `chk-${checkpoint.id}`, newQueryId }),
        headers: { "Content-Type": "application/json" },
      });
      const words = `The job goes back to its ${name}.`;
      asked.set(job.jid, { ended: true, bad: false, words });
      shell.announce(words);
      shell.refresh();
    },
  });
}

/** The buttons of a running streaming job, and what became of the last request. */
export function actions(job, shell) {
  const mine = asked.get(job.jid);
  const by = mine?.by && [" ", h("a", { href: jobHref(mine.by) }, "The job that does it")];
  const said = mine && h("p", { class: mine.bad ? "problem wrap" : "wrap", role: "status" }, mine.words, by);
  if (isOver(job.state) || job["job-type"] !== "STREAMING") return said ? [said] : [];
  const busy = Boolean(mine && !mine.ended) || job.state !== "RUNNING";
  const button = (text, kind, act) => h("button", { type: "button", class: kind, disabled: busy, on: { click: act } }, text);
  const stop = () =>
    confirm({
      title: "Stop this job?",
      text: `The queries of “${job.name}” are stopped between two batches, a savepoint is made of them, and the job finishes. Where the savepoint fails the job goes on.`,
      verb: "Stop with a savepoint",
      act: () => trigger(job, "stop", "savepoints", "The savepoint of the stop", shell),
    });
  const rescale = () =>
    confirm({
      title: "Rescale this job?",
      text: `A job in a free slot copies the state of “${job.name}” into another number of partitions. Then its tasks restart from the copy, and repeat the batches since.`,
      number: "Number of partitions",
      verb: "Rescale",
      act: (partitions) => trigger(job, "rescales", "rescales", "The rescale", shell, { partitions }),
    });
  const plainly = (...request) => () => trigger(job, ...request, shell).catch(() => {}); // what went wrong is said below
  return [
    h(
      "div",
      { class: "buttons", key: "actions" },
      button("Take a checkpoint", "", plainly("checkpoints", "checkpoints", "The checkpoint")),
      button("Make a savepoint", "", plainly("savepoints", "savepoints", "The savepoint")),
      button("Rescale…", "", rescale),
      button("Stop with a savepoint", "danger", stop),
    ),
    said,
  ];
}
