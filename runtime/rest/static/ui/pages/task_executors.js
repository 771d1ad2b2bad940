// The registered TaskExecutors.

import { at, getJson } from "../api.js";
import { h } from "../dom.js";
import { bytes, count } from "../format.js";
import { card, gauge, heading, lasting, table } from "../parts.js";

export async function load() {
  return (await getJson("taskmanagers")).taskmanagers;
}

export function executorTable(executors, href) {
  return table(
    "Task executors",
    [
      { title: "Task executor", kind: "name", cell: (tm) => h("a", { href: href(tm.id) }, tm.id) },
      {
        title: "Slots in use",
        cell: (tm) => {
          const used = tm.slotsNumber - tm.freeSlots;
          return gauge(used, tm.slotsNumber, `${count(used)} of ${count(tm.slotsNumber)}`);
        },
      },
      { title: "Cores", kind: "number", cell: (tm) => count(tm.totalResource.cpuCores) },
      { title: "Memory", kind: "number", cell: (tm) => bytes(tm.memoryConfiguration.totalProcessMemory) },
      {
        title: "Last heartbeat",
        kind: "number",
        cell: (tm) => [lasting(tm.timeSinceLastHeartbeat, -1), " ago"],
      },
    ],
    executors,
    { key: (tm) => tm.id, none: "No task executor is registered: jobs wait until one is." },
  );
}

export function view(executors) {
  return [heading("Task executors"), card("", executorTable(executors, (id) => `#/taskmanagers/${at(id)}`))];
}
