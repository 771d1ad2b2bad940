// The masters: who leads what, how they are configured, their logs.

import { at, getJson, getOptional } from "../api.js";
import { h } from "../dom.js";
import { card, configuration, facts, heading, loadLog, logList, logText, moment, table, tabs, threadDump } from "../parts.js";

const PARTS = [
  ["", "Leaders"],
  ["logs", "Logs"],
  ["configuration", "Configuration"],
  ["thread-dump", "Thread dump"],
];

export async function load({ tab, file }) {
  if (tab === "logs") return file ? loadLog(`jobmanager/logs/${at(file)}`) : (await getJson("jobmanager/logs")).logs;
  if (tab === "configuration") return getJson("jobmanager/config");
  if (tab === "thread-dump") return getOptional("jobmanager/thread-dump");
  const [leaders, config, environment] = await Promise.all([
    getOptional("leaders"),
    getJson("config"),
    getJson("jobmanager/environment"),
  ]);
  return { leaders, config, environment };
}

function leaderTable(leaders) {
  return table(
    "Leaders",
    [
      { title: "Component", cell: (leader) => leader.component },
      { title: "Epoch", kind: "number", cell: (leader) => String(leader.epoch ?? "–") },
      { title: "Since", kind: "wide", cell: (leader) => moment(leader.since ?? -1) },
      { title: "Address", kind: "mono wrap", cell: (leader) => leader.address || "nobody leads" },
    ],
    leaders,
    { key: (leader) => leader.component },
  );
}

function state({ leaders, config, environment }) {
  return [
    leaders && card("Who leads", leaderTable(leaders.leaders)),
    card(
      "Software",
      facts([
        ["Understudy", config["flink-revision"]],
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
    tabs("Parts of the masters", PARTS.map(([path, title]) => [title, path ? `${base}/${path}` : base]), tab ? `${base}/${tab}` : base),
    h("div", { class: "part", key: `part ${tab ?? ""} ${file ?? ""}` }, shown[tab] ? shown[tab]() : state(data)),
  ];
}
