// How the job was set up.

import { at, getJson } from "../api.js";
import { card, configuration } from "../parts.js";

export async function load(job) {
  return (await getJson(`jobs/${at(job.jid)}/config`))["execution-config"] ?? {};
}

export function view(config) {
  const { "user-config": own = {}, ...rest } = config;
  const entries = Object.entries({ ...rest, ...own });
  return card("", configuration(entries.map(([key, value]) => ({ key, value: String(value) }))));
}
