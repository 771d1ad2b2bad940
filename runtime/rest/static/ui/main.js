// Which page is shown, when it is asked for anew, and what is said of the server.

import { ApiError, Unreachable, getJson, hasToken, logOut, setToken } from "./api.js";
import { h, render } from "./dom.js";
import { duration, time } from "./format.js";
import { arrived, finish, issuerOf } from "./issuer.js";
import { Connection } from "./live.js";
import { mode, setMode } from "./mode.js";
import { announce, notice } from "./parts.js";
import * as actors from "./pages/actors.js";
import * as audit from "./pages/audit.js";
import * as figures from "./pages/figures.js";
import * as job from "./pages/job.js";
import * as jobs from "./pages/jobs.js";
import * as login from "./pages/login.js";
import * as masters from "./pages/masters.js";
import * as overview from "./pages/overview.js";
import * as queues from "./pages/queues.js";
import * as submit from "./pages/submit.js";
import * as task from "./pages/task.js";
import * as taskExecutor from "./pages/task_executor.js";
import * as taskExecutors from "./pages/task_executors.js";

const NAV = [
  ["Overview", "#/"],
  ["Jobs", "#/jobs"],
  ["Queues", "#/queues"],
  ["Executors", "#/taskmanagers"],
  ["Masters", "#/masters"],
  ["Actors", "#/actors"],
  ["Figures", "#/figures"],
  ["Audit", "#/audit"],
  ["Submit", "#/submit"],
];
const IN_HISTORY = ["Overview", "Jobs", "Figures", "Audit"];
// A page has load(parameters) and view(data, parameters, shell); `parameters.query` is what stands behind a question mark.
const ROUTES = [
  [/^\/?$/, overview, []],
  [/^\/jobs$/, jobs, []],
  [/^\/jobs\/([^/]+)\/tasks\/([^/]+)$/, task, ["job", "task"]],
  [/^\/jobs\/([^/]+)(?:\/([^/]+))?(?:\/([^/]+))?(?:\/([^/]+))?$/, job, ["job", "tab", "attempt", "log"]],
  [/^\/queues$/, queues, []],
  [/^\/taskmanagers$/, taskExecutors, []],
  [/^\/taskmanagers\/([^/]+)(?:\/([^/]+))?(?:\/([^/]+))?$/, taskExecutor, ["id", "tab", "file"]],
  [/^\/masters(?:\/([^/]+))?(?:\/([^/]+))?$/, masters, ["tab", "file"]],
  [/^\/actors$/, actors, []],
  [/^\/figures(?:\/([^/]+))?(?:\/([^/]+))?$/, figures, ["range", "cluster"]],
  [/^\/audit(?:\/([^/]+))?$/, audit, ["cluster"]],
  [/^\/submit(?:\/([^/]+))?$/, submit, ["savepoint"]],
];

const PATIENCE_MS = 3000;

const main = document.getElementById("main");
const banner = document.getElementById("banner");

let current = null; // what is shown: {route, page, parameters, data, error}
let turn = 0; // only the last of several answers counts
let asking = false;
let askedAt = 0;
let config = null;
let waitsForToken = false;
let loginProblem = ""; // what went wrong at the last log-in or log-out; it is shown until a log-in succeeds
const states = new Map(); // of the jobs that were seen, to tell what changed

const connection = new Connection(() => {
  showConnection();
  if (connection.state !== "lost") announce("Connected to the server");
}, refresh);

/** What pages may do besides showing. */
const shell = { refresh, redraw, announce, tellStates, submitToken, goTo: (hash) => (location.hash = hash) };

/** Say which of the jobs have another state than when they were last seen. */
function tellStates(list) {
  const news = [];
  for (const { jid, name, state } of list) {
    if (states.has(jid) && states.get(jid) !== state) news.push(`${name} is ${state}`);
    states.set(jid, state);
  }
  if (news.length) announce(news.join("; "));
}

function find(hash) {
  const [path, query] = hash.replace(/^#/, "").split("?", 2);
  for (const [pattern, page, names] of ROUTES) {
    const match = pattern.exec(path);
    if (!match) continue;
    try {
      const parts = match.slice(1).map((part) => part && decodeURIComponent(part));
      const parameters = Object.fromEntries(names.map((name, i) => [name, parts[i]]));
      return { page, path, parameters: { ...parameters, query: new URLSearchParams(query) } };
    } catch {
      return null; // not decodable
    }
  }
  return null;
}

async function navigate() {
  const route = location.hash || "#/";
  const found = find(route);
  if (found && found.path === current?.path && current.data !== null) {
    // Only what is chosen on the page is another.
    Object.assign(current, { route, parameters: found.parameters });
    return redraw();
  }
  current = { route, ...found, data: null, error: null };
  showNav();
  if (!found) {
    show([h("h1", { tabindex: "-1" }, "There is no such page"), h("p", {}, h("a", { href: "#/" }, "To the overview"))]);
    asking = false;
    await refresh();
    return;
  }
  main.setAttribute("aria-busy", "true");
  asking = false;
  await refresh();
  if (current.route !== route) return;
  scrollTo(0, 0);
  (main.querySelector("#issuer") ?? main.querySelector("#token") ?? main.querySelector("h1"))?.focus({ preventScroll: true });
}

async function refresh() {
  if (!current || document.hidden || asking || (!current.page && config !== null)) return;
  const mine = ++turn;
  const asked = current;
  asking = true;
  askedAt = Date.now();
  try {
    if (config === null) await begin();
    if (current !== asked || !asked.page) return;
    const data = await asked.page.load(asked.parameters);
    if (mine !== turn || asked !== current) return;
    current.data = data;
    current.error = null;
  } catch (error) {
    if (mine !== turn || asked !== current) return;
    if (error instanceof ApiError && error.status === 401) return askForToken();
    if (!(error instanceof Unreachable || error instanceof ApiError)) console.error(error); // a fault of this page's
    current.error = error;
  } finally {
    if (mine === turn) asking = false;
  }
  redraw();
  showConnection();
}

async function begin() {
  config = await getJson("config");
  setMode(config);
  showHistory();
  showNav();
  document.getElementById("logout").hidden = !hasToken();
  waitsForToken = false;
  loginProblem = "";
  if (current) current.error = null;
  connection.start(config["refresh-interval"] ?? 3000);
}

function redraw() {
  if (!current?.page || waitsForToken) return; // the form for the token stays
  const { page, parameters, data, error } = current;
  if (error instanceof Unreachable && data === null) {
    show([h("h1", { tabindex: "-1" }, "No answer"), h("p", {}, "Nothing is known until the server answers.")]);
  } else if (error && data === null) {
    const missing = error.status === 404;
    show([
      h("h1", { tabindex: "-1" }, missing ? "Not found" : "The server cannot tell"),
      notice("bad", error.message),
      h("p", {}, h("a", { href: "#/" }, "To the overview")),
    ]);
  } else if (data !== null) {
    const said = error !== null && !(error instanceof Unreachable) && notice("bad", `This is not the present state: ${error.message}`);
    show([said, page.view(data, parameters, shell)]);
  }
  showStale();
}

function show(nodes) {
  main.removeAttribute("aria-busy");
  main.dataset.route = current.route;
  render(main, nodes);
  const title = main.querySelector("h1")?.textContent;
  document.title = title ? `${title} – Understudy` : "Understudy";
}

/** The server is there and yet does not answer, as when nobody leads. */
function isLate() {
  return asking && Date.now() - askedAt > Math.max(PATIENCE_MS, 3 * connection.interval);
}

function showStale() {
  const stale = connection.state === "lost" || isLate() || Boolean(current?.error && current.data);
  main.classList.toggle("stale", stale);
}

function showNav() {
  const part = (hash) => hash.split(/[/?]/)[1] ?? "";
  render(
    document.getElementById("nav"),
    h(
      "ul",
      {},
      NAV.filter(([text]) => !mode.history || IN_HISTORY.includes(text)).map(([text, href]) =>
        h("li", {}, h("a", { href, "aria-current": part(href) === part(current.route) ? "page" : undefined }, text)),
      ),
    ),
  );
}

/** A history says whose it is, on every page. */
function showHistory() {
  const names = mode.clusters.map(({ name }) => name).join(", ");
  const line = document.getElementById("history");
  line.hidden = !mode.history;
  line.textContent = mode.history ? `History of ${names}` : "";
}

const WORDS = { connecting: "Connecting", live: "Live", polling: "Live, by asking", lost: "No answer" };

function showConnection() {
  const { state, lastHeard } = connection;
  const line = document.getElementById("connection");
  line.dataset.state = state;
  line.lastElementChild.textContent = WORDS[state];
  const since = () => `No answer from the server since ${time(lastHeard)}.`;
  const words = " What is shown is how it was then. Asking again every second.";
  if (state === "lost") render(banner, h("p", {}, h("strong", {}, since()), words));
  else if (isLate()) render(banner, h("p", {}, `Waiting for the cluster's answer since ${time(askedAt)}.`));
  else render(banner, []);
  showStale();
}

async function askForToken() {
  const refused = hasToken() ? "The token is not good any more." : "";
  config = null;
  waitsForToken = true;
  connection.stop();
  current.data = null;
  const issuer = await issuerOf();
  if (!waitsForToken) return;
  show(login.view(shell, issuer, loginProblem || refused));
  main.classList.remove("stale");
}

/** Try a token; false when the server refuses it. */
async function submitToken(token) {
  setToken(token);
  try {
    await begin();
  } catch (error) {
    setToken(null);
    if (error instanceof ApiError && error.status === 401) return false;
    throw error;
  }
  main.replaceChildren();
  await navigate();
  return true;
}

document.getElementById("logout").addEventListener("click", async (event) => {
  event.currentTarget.hidden = true;
  try {
    await logOut();
    location.reload();
  } catch (error) {
    loginProblem = `This tab is logged out, and the issuer was not told: ${error.message}`;
    askForToken();
  }
});
// An anchor to #main would be taken for a page.
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
setInterval(() => {
  if (config === null && !waitsForToken) refresh(); // it was gone before it could say how to follow it
  showConnection();
  if (main.classList.contains("stale")) return; // time does not go on in what is not known
  for (const element of document.querySelectorAll(".lasting")) {
    element.textContent = duration(Date.now() - Number(element.dataset.start));
  }
}, 1000);
window.addEventListener("hashchange", navigate);
window.addEventListener("resize", redraw); // the graph lies or stands
document.addEventListener("visibilitychange", () => {
  // A browser has six connections for a server: pages that nobody looks at keep none.
  if (document.hidden) connection.stop();
  else if (config !== null) {
    connection.start(config["refresh-interval"]);
    refresh();
  }
});
const arrival = arrived();
if (arrival) {
  try {
    await finish(arrival);
  } catch (error) {
    if (!hasToken()) loginProblem = error.message;
  }
}
navigate();
