// One TaskExecutor: what it takes of its machine, its logs, where its threads are.

import { at, getJson, getOptional } from "../api.js";
import { h } from "../dom.js";
import { bytes, count } from "../format.js";
import { logView } from "../log_view.js";
import { card, facts, gauge, heading, lasting, table, tabs, trail } from "../parts.js";
import { followLog, loadLog, logList, logText, threadDump } from "../texts.js";
import { jobHref, titleOf } from "./job_tables.js";
import * as profile from "./profile.js";

const PARTS = [
  ["", "State"],
  ["logs", "Logs"],
  ["stdout", "Stdout"],
  ["thread-dump", "Thread dump"],
  ["profile", "Profile"],
];

const pathOf = (id) => `taskmanagers/${at(id)}`;
const logPath = (id, file) => `${pathOf(id)}/logs/${at(file)}`;

export async function load({ id, tab, file }) {
  const path = pathOf(id);
  const executor = await getJson(path);
  let part = null;
  if (tab === "logs") part = file ? await followLog(logPath(id, file)) : (await getJson(`${path}/logs`)).logs;
  else if (tab === "stdout") part = await loadLog(`${path}/stdout`);
  else if (tab === "thread-dump") part = await getOptional(`${path}/thread-dump`);
  else if (!tab) part = (await getJson("jobs/overview")).jobs;
  return { executor, part };
}

function memory(name, used, most) {
  return [name, most > 0 ? gauge(used, most, `${bytes(used)} of ${bytes(most)}`) : bytes(used)];
}

function state(executor, jobs) {
  const titles = new Map(jobs.map((job) => [job.jid, titleOf(job)]));
  const { metrics, process = {}, "resident-memory": resident = {} } = executor;
  return [
    card(
      "Resources",
      facts([
        ["Slots", `${count(executor.slotsNumber - executor.freeSlots)} of ${count(executor.slotsNumber)} in use`],
        ...(executor.user ? [["Serves jobs of", executor.user]] : []),
        ["Tasks", count(executor.assignedTasks)],
        ["Cores", count(executor.totalResource.cpuCores)],
        memory("Spark driver heap", metrics.heapUsed, metrics.heapMax),
        ["Spark driver memory (resident)", bytes(resident.spark ?? 0)],
        ["Task executor memory (resident)", bytes(resident["task-executor"] ?? 0)],
        ["Memory of the machine", bytes(executor.hardware.physicalMemory)],
        ["Last heartbeat", lasting(executor.timeSinceLastHeartbeat, -1), " ago"],
      ]),
    ),
    card(
      "Process",
      facts([
        ["Address", h("code", { class: "wrap" }, executor.path)],
        ...Object.entries(process).map(([name, value]) => [name, String(value)]),
      ]),
    ),
    card(
      "Slots in use",
      table(
        "Slots in use",
        [
          {
            title: "Job",
            kind: "name",
            cell: (slot) => h("a", { href: jobHref(slot.jobId) }, titles.get(slot.jobId) ?? slot.jobId),
          },
          { title: "Tasks", kind: "number", cell: (slot) => count(slot.assignedTasks) },
          { title: "Memory", kind: "number", cell: (slot) => bytes(slot.resource.taskHeapMemory * 1024 * 1024) },
        ],
        executor.allocatedSlots ?? [],
        { none: "All slots are free." },
      ),
    ),
  ];
}

export function view({ executor, part }, { id, tab, file }, shell) {
  const base = `#/taskmanagers/${at(id)}`;
  const shown = {
    logs: () =>
      file
        ? logView({ label: file, path: logPath(id, file), text: part }, shell)
        : logList(part, (name) => `${base}/logs/${at(name)}`),
    stdout: () => logText("Standard output", part),
    "thread-dump": () => card("", threadDump(part)),
    profile: () => profile.view(id, file, shell),
  };
  const steps = [["Task executors", "#/taskmanagers"], [id, file && base]];
  return [
    trail(...steps, ...(file ? [tab === "profile" ? ["Profile", `${base}/profile`] : ["Logs", `${base}/logs`], [file]] : [])),
    heading(id),
    tabs("Parts of the task executor", PARTS, base, tab),
    h("div", { class: "part", key: `part ${tab ?? ""} ${file ?? ""}` }, shown[tab] ? shown[tab]() : state(executor, part)),
  ];
}
