// The masters: who leads what, how they are configured, their logs.

import { ApiError, at, getJson, getOptional } from "../api.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { logView } from "../log_view.js";
import { card, configuration, facts, heading, lasting, linked, moment, table, tabs } from "../parts.js";
import { followLog, logList, threadDump } from "../texts.js";
import * as levels from "./log_levels.js";

const PARTS = [
  ["", "Processes"],
  ["logs", "Logs"],
  ["log-levels", "Log levels"],
  ["configuration", "Configuration"],
  ["thread-dump", "Thread dump"],
];

const logPath = (file) => `jobmanager/logs/${at(file)}`;

export async function load({ tab, file }) {
  if (tab === "logs") return file ? followLog(logPath(file)) : (await getJson("jobmanager/logs")).logs;
  if (tab === "log-levels") return levels.load();
  if (tab === "configuration") return getJson("jobmanager/config");
  if (tab === "thread-dump") return getOptional("jobmanager/thread-dump");
  const [cluster, config, environment, actors, level] = await Promise.all([
    ...["processes", "config", "jobmanager/environment"].map((path) => getJson(path)),
    getOptional("actors"),
    getJson("feature-level").catch(withoutLeader),
  ]);
  return { cluster, config, environment, leaders: leadersOf(actors), level };
}

/** The processes are shown also while no Dispatcher leads, which knows the level. */
function withoutLeader(error) {
  if (error instanceof ApiError) return null;
  throw error;
}

/** What each process says itself of its leadership, by its name: {epoch, since}. */
function leadersOf(actors) {
  const found = new Map();
  for (const process of actors?.processes ?? []) {
    const leader = process.actors.find((actor) => actor.epoch > 0);
    if (leader) found.set(process.name, { epoch: leader.epoch, since: leader["leads-since"] });
  }
  return found;
}

function leadership(process, leaders) {
  if (process.stopped) return h("span", { class: "badge" }, "stopped");
  const own = leaders.get(process.name);
  const kind = process.leadership || (own ? "leader" : "");
  if (!kind) return "–";
  const epoch = process.epoch > 0 ? process.epoch : (own?.epoch ?? 0);
  return [
    h("span", { class: kind === "leader" ? "badge tone-good" : "badge" }, kind),
    epoch > 0 && h("span", { class: "small muted" }, ` epoch ${epoch}`),
  ];
}

function processTable(processes, leaders) {
  return table(
    "Processes",
    [
      { title: "Process", kind: "name", cell: (process) => linked(process.name) },
      { title: "Leadership", cell: (process) => leadership(process, leaders) },
      {
        title: "Leads since",
        cell: (process) => {
          const since = leaders.get(process.name)?.since;
          return since > 0 ? [moment(since), h("span", { class: "small muted" }, " ", lasting(since, -1))] : "–";
        },
      },
      { title: "Pid", kind: "number", cell: (process) => (process.pid > 0 ? process.pid : "–") },
      { title: "Restarts", kind: "number", cell: (process) => count(process.restarts) },
      { title: "Address", kind: "mono wrap", cell: (process) => process.url || process.address || "–" },
    ],
    processes,
    { key: (process) => `${process.address} ${process.name}` },
  );
}

/** The feature level, and what raises it; the leading Dispatcher knows it. */
function featureLevel(level) {
  if (!level) return "–";
  const [now, newest] = [level["feature-level"], level["newest-feature-level"]];
  return newest > now ? `${now}; understudy cluster finalize raises it to ${newest}` : `${now}`;
}

function state({ cluster, config, environment, leaders, level }) {
  return [
    card("Processes", processTable(cluster.processes, leaders)),
    card(
      "Cluster",
      facts([
        ["Id", cluster["cluster-id"]],
        ["Started", moment(cluster["start-time"])],
        ["Understudy", cluster.version],
        ["Feature level", featureLevel(level)],
        ["REST API", `Flink ${config["flink-version"]}`],
        ["Python", environment.jvm.version],
        ["Machine", environment.jvm.arch],
        ["Time zone", config["timezone-name"]],
      ]),
    ),
  ];
}

export function view(data, { tab, file }, shell) {
  const base = "#/masters";
  const shown = {
    logs: () =>
      file
        ? [h("h2", {}, file), logView({ label: file, path: logPath(file), text: data }, shell)]
        : logList(data, (name) => `${base}/logs/${at(name)}`),
    "log-levels": () => levels.view(data, shell),
    configuration: () => card("", configuration(data)),
    "thread-dump": () => card("", threadDump(data)),
  };
  return [
    heading("Masters"),
    tabs("Parts of the masters", PARTS, base, tab),
    h("div", { class: "part", key: `part ${tab ?? ""} ${file ?? ""}` }, shown[tab] ? shown[tab]() : state(data)),
  ];
}
