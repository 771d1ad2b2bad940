// The queues: who may have which slots, who uses them, and what waits.

import { getJson } from "../api.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { card, empty, gauge, heading, notice, table } from "../parts.js";
import { jobLink } from "./job_tables.js";

const STEP = 100;
const NO_USER = "no user";

// How many waiting requests are shown: kept while one looks at a job and comes back.
let shown = STEP;

export async function load() {
  return getJson("queues");
}

/** A use and its limit, as a bar where there is one. */
function ofLimit(used, limit) {
  return limit === null ? count(used) : gauge(used, limit, `${count(used)} of ${count(limit)}`);
}

function queueTable(queues, waiting, running) {
  const held = new Set(running);
  const waits = (queue) => {
    const without = waiting.filter((request) => request.queue === queue.name && !held.has(request.job_id));
    return new Set(without.map((request) => request.job_id)).size;
  };
  return table(
    "Queues",
    [
      { title: "Queue", kind: "name", cell: (queue) => queue.name },
      { title: "Weight", kind: "number", cell: (queue) => queue.weight },
      { title: "Priority", kind: "number", cell: (queue) => queue.priority },
      { title: "Slots in use", cell: (queue) => ofLimit(queue.slots, queue.slots_limit) },
      { title: "Running jobs", cell: (queue) => ofLimit(queue.running_jobs, queue.running_jobs_limit) },
      { title: "Memory (MB)", cell: (queue) => ofLimit(queue.memory_mb, queue.memory_mb_limit) },
      { title: "CPUs", cell: (queue) => ofLimit(queue.cpus, queue.cpus_limit) },
      { title: "Blobs (MB)", cell: (queue) => ofLimit(queue.blob_mb, queue.blob_mb_limit) },
      { title: "Waiting jobs", kind: "number", cell: (queue) => count(waits(queue)) },
      { title: "Waiting requests", kind: "number", cell: (queue) => count(queue.waiting) },
    ],
    queues,
    { key: (queue) => queue.name },
  );
}

/** What a user has used of the queue's slot-seconds; users who neither hold a slot nor wait have used some of them too. */
function share(user) {
  if (!(user.ofQueue > 0)) return "–";
  return gauge(user.slot_seconds, user.ofQueue, `${Math.round((100 * user.slot_seconds) / user.ofQueue)} %`);
}

function userTable(queues) {
  const users = queues.flatMap((queue) =>
    queue.users.map((user) => ({ ...user, queue: queue.name, ofQueue: queue.slot_seconds })),
  );
  return table(
    "Users",
    [
      { title: "User", kind: "name", cell: (user) => user.user || h("span", { class: "muted" }, NO_USER) },
      { title: "Queue", kind: "name", cell: (user) => user.queue },
      { title: "Slots", kind: "number", cell: (user) => count(user.slots) },
      { title: "Memory (MB)", kind: "number", cell: (user) => count(user.memory_mb) },
      { title: "CPUs", kind: "number", cell: (user) => count(user.cpus) },
      { title: "Waiting requests", kind: "number", cell: (user) => count(user.waiting) },
      { title: "Slot-seconds", kind: "number", cell: (user) => count(Math.round(user.slot_seconds)) },
      { title: "Share of the queue", cell: share },
    ],
    users,
    { key: (user) => `${user.queue} ${user.user}`, none: "No user holds a slot or waits for one." },
  );
}

function limitTable(limits) {
  return table(
    "Limits",
    [
      { title: "User or group", kind: "name", cell: (limited) => `${limited.kind} ${limited.name}` },
      { title: "Slots in use", cell: (limited) => ofLimit(limited.slots, limited.slots_limit) },
      { title: "Running jobs", cell: (limited) => ofLimit(limited.running_jobs, limited.running_jobs_limit) },
      { title: "Memory (MB)", cell: (limited) => ofLimit(limited.memory_mb, limited.memory_mb_limit) },
      { title: "CPUs", cell: (limited) => ofLimit(limited.cpus, limited.cpus_limit) },
      { title: "Blobs (MB)", cell: (limited) => ofLimit(limited.blob_mb, limited.blob_mb_limit) },
    ],
    limits,
    { key: (limited) => `${limited.kind} ${limited.name}`, none: "No user has jobs or limits of their own." },
  );
}

function requestTable(waiting) {
  return table(
    "Waiting requests",
    [
      { title: "Job", kind: "name", cell: (request) => jobLink(request.job_id, request.job_name) },
      { title: "Task", kind: "name", cell: (request) => request.task_name },
      { title: "User", kind: "name", cell: (request) => request.user || h("span", { class: "muted" }, NO_USER) },
      { title: "Queue", kind: "name", cell: (request) => request.queue },
      { title: "Place", kind: "number", cell: (request) => count(request.place) },
      { title: "Waiting for", kind: "wrap", cell: (request) => request.reason },
    ],
    waiting.slice(0, shown),
    { key: (request) => request.allocation_id, none: "No request waits for a slot." },
  );
}

export function view({ queues, waiting, running, problem, has_file: hasFile, limits }, _parameters, shell) {
  if (!hasFile) {
    return [
      heading("Queues"),
      empty("This cluster has no file of queues: jobs get slots by their priority, and then in the order of their requests."),
    ];
  }
  const more = () => {
    shown += STEP;
    shell.redraw();
  };
  return [
    heading("Queues"),
    problem &&
      notice(
        "bad",
        h("strong", {}, "queues.file is wrong"),
        h("p", { class: "wrap" }, problem),
        h("p", {}, "The last right content stays in use. If there was none since the start, no job is accepted."),
      ),
    card("Queues", queueTable(queues, waiting, running)),
    card("Users", userTable(queues)),
    limits.length > 0 && card("Limits", limitTable(limits)),
    h(
      "section",
      { class: "card", key: "waiting" },
      h("h2", {}, `Waiting requests (${count(waiting.length)})`),
      requestTable(waiting),
      waiting.length > shown && h("p", {}, h("button", { type: "button", on: { click: more } }, `Show ${STEP} more`)),
    ),
  ];
}
