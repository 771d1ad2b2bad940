// The registered TaskExecutors.

import { inOrder, sortingOf } from "../address.js";
import { at, getJson } from "../api.js";
import { h } from "../dom.js";
import { bytes, count } from "../format.js";
import { card, gauge, heading, lasting, table } from "../parts.js";

export async function load() {
  return (await getJson("taskmanagers")).taskmanagers;
}

const PATH = "#/taskmanagers";
const used = (tm) => tm.slotsNumber - tm.freeSlots;
const memory = (tm) => tm.memoryConfiguration.totalProcessMemory;
const COLUMNS = [
  {
    title: "Task executor",
    kind: "name",
    cell: (tm) => h("a", { href: `${PATH}/${at(tm.id)}` }, tm.id),
    sort: { name: "id", value: (tm) => tm.id },
  },
  {
    title: "Slots in use",
    cell: (tm) => gauge(used(tm), tm.slotsNumber, `${count(used(tm))} of ${count(tm.slotsNumber)}`),
    sort: { name: "used", value: used },
  },
  {
    title: "Cores",
    kind: "number",
    cell: (tm) => count(tm.totalResource.cpuCores),
    sort: { name: "cores", value: (tm) => tm.totalResource.cpuCores },
  },
  { title: "Memory", kind: "number", cell: (tm) => bytes(memory(tm)), sort: { name: "memory", value: memory } },
  {
    title: "Last heartbeat",
    kind: "number",
    cell: (tm) => [lasting(tm.timeSinceLastHeartbeat, -1), " ago"],
    sort: { name: "heartbeat", value: (tm) => tm.timeSinceLastHeartbeat },
  },
];

const OF_USERS = COLUMNS.toSpliced(1, 0, {
  title: "User",
  cell: (tm) => tm.user || "-",
  sort: { name: "user", value: (tm) => tm.user },
});
const columnsOf = (executors) => (executors.some((tm) => tm.user) ? OF_USERS : COLUMNS);

export function executorTable(executors, sorting) {
  const columns = columnsOf(executors);
  return table("Task executors", columns, sorting ? inOrder(executors, columns, sorting) : executors, {
    key: (tm) => tm.id,
    none: "No task executor is registered: jobs wait until one is.",
    sorting,
  });
}

export function view(executors, { query }) {
  return [heading("Task executors"), card("", executorTable(executors, sortingOf(columnsOf(executors), PATH, query, "id")))];
}
