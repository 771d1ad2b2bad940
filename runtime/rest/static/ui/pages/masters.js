// The masters: who leads what, how they are configured, their logs.

import { at, getJson, getOptional } from "../api.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { card, configuration, facts, heading, moment, table, tabs } from "../parts.js";
import { loadLog, logList, logText, threadDump } from "../texts.js";

const PARTS = [
  ["", "Processes"],
  ["logs", "Logs"],
  ["configuration", "Configuration"],
  ["thread-dump", "Thread dump"],
];

export async function load({ tab, file }) {
  if (tab === "logs") return file ? loadLog(`jobmanager/logs/${at(file)}`) : (await getJson("jobmanager/logs")).logs;
  if (tab === "configuration") return getJson("jobmanager/config");
  if (tab === "thread-dump") return getOptional("jobmanager/thread-dump");
  const [cluster, config, environment] = await Promise.all(
    ["processes", "config", "jobmanager/environment"].map((path) => getJson(path)),
  );
  return { cluster, config, environment };
}

function leadership(process) {
  if (process.stopped) return h("span", { class: "badge" }, "stopped");
  if (!process.leadership) return "–";
  const epoch = process.epoch > 0 && h("span", { class: "small muted" }, ` epoch ${process.epoch}`);
  const kind = process.leadership === "leader" ? "badge tone-good" : "badge";
  return [h("span", { class: kind }, process.leadership), epoch];
}

function processTable(processes) {
  return table(
    "Processes",
    [
      { title: "Process", cell: (process) => process.name },
      { title: "Leadership", cell: leadership },
      { title: "Pid", kind: "number wide", cell: (process) => (process.pid > 0 ? process.pid : "–") },
      { title: "Restarts", kind: "number wide", cell: (process) => count(process.restarts) },
      { title: "Address", kind: "wide mono wrap", cell: (process) => process.url || process.address || "–" },
    ],
    processes,
    { key: (process) => `${process.address} ${process.name}` },
  );
}

function state({ cluster, config, environment }) {
  return [
    card("Processes", processTable(cluster.processes)),
    card(
      "Cluster",
      facts([
        ["Id", cluster["cluster-id"]],
        ["Started", moment(cluster["start-time"])],
        ["Understudy", cluster.version],
        ["REST API", `Flink ${config["flink-version"]}`],
        ["Python", environment.jvm.version],
        ["Machine", environment.jvm.arch],
        ["Time zone", config["timezone-name"]],
      ]),
    ),
  ];
}

export function view(data, { tab, file }) {
  const base = "#/masters";
  const shown = {
    logs: () => (file ? [h("h2", {}, file), logText(file, data)] : logList(data, (name) => `${base}/logs/${at(name)}`)),
    configuration: () => card("", configuration(data)),
    "thread-dump": () => card("", threadDump(data)),
  };
  return [
    heading("Masters"),
    tabs("Parts of the masters", PARTS, base, tab),
    h("div", { class: "part", key: `part ${tab ?? ""} ${file ?? ""}` }, shown[tab] ? shown[tab]() : state(data)),
  ];
}
