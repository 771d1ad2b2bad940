// A profile of a TaskExecutor, or of a task process of it: taken when it is asked for, and shown until another is.

import { at, getJson } from "../api.js";
import { h } from "../dom.js";
import { flameGraph, hottest } from "../flame.js";
import { count, duration, time } from "../format.js";
import { card, empty } from "../parts.js";

const SAMPLES = 100;
const INTERVAL_MS = 20;

let taken = null; // the last one: {of, profile, problem, busy}

export function view(executor, attempt, shell) {
  const of = `${executor} ${attempt ?? ""}`;
  const shown = taken?.of === of ? taken : { of };
  const take = async () => {
    const mine = { of, busy: true };
    taken = mine;
    shell.redraw();
    try {
      const query = new URLSearchParams({ samples: SAMPLES, interval: INTERVAL_MS, ...(attempt ? { attempt } : {}) });
      mine.profile = await getJson(`taskmanagers/${at(executor)}/flamegraph?${query}`);
      shell.announce("The profile is there");
    } catch (error) {
      mine.problem = error.message;
    } finally {
      mine.busy = false;
      shell.redraw();
    }
  };
  const { profile, problem, busy } = shown;
  return [
    card(
      attempt ? `Process of attempt ${attempt}` : "Process of the task executor",
      h("p", { class: "small muted" }, `${SAMPLES} samples of all its threads within ${duration(SAMPLES * INTERVAL_MS)}. Threads that wait are counted where they wait.`),
      h("p", { class: "problem wrap", role: "alert" }, problem),
      h("div", {}, h("button", { type: "button", class: "primary", disabled: busy, on: { click: take } }, busy ? "Looking…" : "Take a profile")),
    ),
    profile
      ? [
          card(
            "Flame graph",
            h("p", { class: "small muted" }, `Process ${profile.pid}, ${count(profile.samples)} samples, until ${time(profile.endTimestamp)}`),
            flameGraph(profile.root),
          ),
          card("Innermost frames", hottest(profile.root)),
        ]
      : empty("No profile was taken yet."),
  ];
}
