// A job's graph as SVG: layers from sources to sinks, left to right, or downwards where there is little room.

import { s } from "./dom.js";
import { duration, plural } from "./format.js";
import { tone } from "./parts.js";

const HEIGHT = 92;
const WIDTH = { least: 128, most: 216 };
const NARROW = 640;
const CHARACTER = { name: 9.4, what: 7.2 }; // about the widest that a system's font draws

/** The layer of each node: one behind the furthest of its inputs. A cycle, which no job has, would end the search. */
export function layersOf(nodes) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const depths = new Map();
  const visit = (node, path) => {
    if (depths.has(node.id)) return depths.get(node.id);
    if (path.has(node.id)) return 0;
    path.add(node.id);
    const inputs = (node.inputs ?? []).map((input) => byId.get(input.id)).filter(Boolean);
    const before = inputs.map((input) => visit(input, path));
    path.delete(node.id);
    const depth = before.length ? Math.max(...before) + 1 : 0;
    depths.set(node.id, depth);
    return depth;
  };
  nodes.forEach((node) => visit(node, new Set()));
  const layers = [];
  for (const node of nodes) (layers[depths.get(node.id)] ??= []).push(node);
  // Each layer in the order of its inputs' middle, so that few edges cross.
  const rank = new Map();
  for (const layer of layers) {
    const middle = (node) => {
      const ranks = (node.inputs ?? []).map((input) => rank.get(input.id)).filter((r) => r !== undefined);
      return ranks.length ? ranks.reduce((a, b) => a + b, 0) / ranks.length : 0;
    };
    layer.sort((a, b) => middle(a) - middle(b));
    layer.forEach((node, i) => rank.set(node.id, i - (layer.length - 1) / 2));
  }
  return layers;
}

/** What a node does, line by line: its description is HTML by Flink's custom, of which breaks and entities are read. */
export function describe(description) {
  const entities = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&#39;": "'", "&amp;": "&" };
  return description
    .split(/<br\s*\/?>/)
    .map((line) => line.replace(/&(lt|gt|quot|#x27|#39|amp);/g, (entity) => entities[entity]).trim())
    .filter(Boolean);
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

/**
 * The graph of a job's details.
 * @param href of a vertex, by its id.
 */
export function jobGraph(job, href) {
  const vertices = new Map(job.vertices.map((vertex) => [vertex.id, vertex]));
  const nodes = job.plan.nodes.filter((node) => vertices.has(node.id));
  return drawing(nodes, `Graph of ${plural(nodes.length, "task")}`, (node, place) =>
    box(node, vertices.get(node.id), job.spark?.[node.id], place, href(node.id)),
  );
}

/**
 * A graph of each Spark job that these stages belong to: stages belong together where one reads the other's output.
 * @param stages with `tone`, the colour of their state.
 */
export function stageGraphs(stages) {
  const nodes = stages.map((stage) => ({
    id: `${stage.task.id} ${stage.id}`,
    stage,
    inputs: stage.parents.map((id) => ({ id: `${stage.task.id} ${id}`, exchange: "blocking", ship_strategy: "shuffle" })),
  }));
  return components(nodes).map((group) =>
    drawing(group, `Graph of ${plural(group.length, "Spark stage")}`, (node, place) => {
      const { name, state, tone, tasks } = node.stage;
      const vertex = { name, status: state, tone, duration: 0 };
      return box(node, vertex, { tasks, "tasks-completed": node.stage["tasks-completed"] }, place);
    }),
  );
}

/** The nodes in groups that edges connect, in the order of their first nodes. */
export function components(nodes) {
  const groupOf = new Map(nodes.map((node) => [node.id, [node]]));
  for (const node of nodes) {
    for (const input of node.inputs) {
      const [one, other] = [groupOf.get(input.id), groupOf.get(node.id)];
      if (!one || one === other) continue;
      one.push(...other);
      other.forEach((moved) => groupOf.set(moved.id, one));
    }
  }
  return [...new Set(nodes.map((node) => groupOf.get(node.id)))];
}

function drawing(nodes, label, boxOf) {
  const down = window.innerWidth < NARROW;
  const layers = layersOf(nodes);
  const most = Math.max(...layers.map((layer) => layer.length));
  const gap = down ? { along: 44, across: 14 } : { along: 56, across: 28 };
  const room = (window.innerWidth - 86) / most - gap.across;
  const nodeWidth = down ? Math.round(Math.min(Math.max(room, WIDTH.least), WIDTH.most)) : WIDTH.most;
  const size = down ? { along: HEIGHT, across: nodeWidth } : { along: nodeWidth, across: HEIGHT };
  const span = (n, one, between) => n * one + (n - 1) * between;
  const whole = span(most, size.across, gap.across);
  const places = new Map();
  layers.forEach((layer, i) => {
    const first = (whole - span(layer.length, size.across, gap.across)) / 2;
    layer.forEach((node, j) => {
      const along = i * (size.along + gap.along);
      const across = first + j * (size.across + gap.across);
      places.set(node.id, down ? { x: across, y: along } : { x: along, y: across });
    });
  });
  const length = span(layers.length, size.along, gap.along);
  const [width, height] = down ? [whole, length] : [length, whole];
  const edges = nodes.flatMap((node) =>
    (node.inputs ?? [])
      .filter((input) => places.has(input.id))
      .map((input) =>
        edge(places.get(input.id), places.get(node.id), nodeWidth, down, input, `${input.id} ${node.id}`),
      ),
  );
  const m = 4; // room for focus rings
  return s(
    "svg",
    {
      class: "graph",
      viewBox: `${-m} ${-m} ${width + 2 * m} ${height + 2 * m}`,
      width: width + 2 * m,
      height: height + 2 * m,
      role: "group",
      "aria-label": label,
      key: nodes[0].id,
    },
    edges,
    nodes.map((node) => boxOf(node, { ...places.get(node.id), width: nodeWidth })),
  );
}

function edge(from, to, width, down, input, key) {
  const [x1, y1, x2, y2] = down
    ? [from.x + width / 2, from.y + HEIGHT, to.x + width / 2, to.y]
    : [from.x + width, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = down ? (y2 - y1) / 2 : (x2 - x1) / 2;
  const path = down
    ? `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2 - 5}`
    : `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2 - 5},${y2}`;
  const tip = down
    ? `M${x2 - 4},${y2 - 7} L${x2},${y2} L${x2 + 4},${y2 - 7} Z`
    : `M${x2 - 7},${y2 - 4} L${x2},${y2} L${x2 - 7},${y2 + 4} Z`;
  return s(
    "g",
    { class: `edge ${input.exchange === "blocking" ? "blocking" : ""}`, key },
    s("title", {}, [input.exchange, input.ship_strategy].filter(Boolean).join(", ").toLowerCase()),
    s("path", { class: "line", d: path }),
    s("path", { class: "tip", d: tip }),
  );
}

/**
 * How many of the tasks that Spark made of a vertex are done: {words, share}, null where Spark has made none. A vertex
 * with streaming queries gets tasks for ever: what is done of them is not a share of a whole.
 */
export function progressOf(spark) {
  if (!(spark?.tasks > 0)) return null;
  const done = spark["tasks-completed"];
  if (spark.queries?.length > 0) return { words: `${plural(done, "Spark task")} done`, share: null };
  return { words: `${done} of ${plural(spark.tasks, "Spark task")}`, share: done / spark.tasks };
}

const LEVELS = ["ok", "low", "high"];

/** The back pressure of a vertex: the worst level of its streaming queries; empty where none is known. */
export function pressureOf(spark) {
  const known = (spark?.queries ?? []).map((query) => LEVELS.indexOf(query["backpressure-level"]));
  return LEVELS[Math.max(-1, ...known)] ?? "";
}

/** A node's box: a link where there is `href`. */
function box(node, vertex, spark, place, href) {
  const { x, y, width } = place;
  const steps = describe(node.description ?? "");
  const progress = progressOf(spark);
  const done = progress?.words ?? "";
  const isWide = width > 190;
  const short = isWide ? done : done.replace(/ Spark tasks?/, "");
  const level = pressureOf(spark);
  const pressed = level && `back pressure ${level.toUpperCase()}`;
  const what = pressed || short || (steps.length > 1 ? plural(steps.length, "step") : (steps[0] ?? ""));
  const lasts = vertex.duration > 0 ? duration(vertex.duration) : "";
  const kind = vertex.tone ?? tone(vertex.status);
  const inner = width - 28;
  const fitting = (text, character) => cut(text, Math.floor(inner / character));
  const bar = { x: x + 14, y: y + 81, height: 3, rx: 1.5 };
  return s(
    href ? "a" : "g",
    {
      href,
      role: href ? undefined : "img",
      key: node.id,
      class: "node",
      "aria-label": [`${vertex.name}: ${vertex.status}`, lasts, done, pressed].filter(Boolean).join(", "),
    },
    s("title", {}, `${vertex.name}\n${steps.join("\n")}`),
    s("rect", { class: `box ${level && `box-${level}`}`, x, y, width, height: HEIGHT, rx: 8 }),
    level && s("rect", { class: `pressure-${level}`, x, y: y + 12, width: 5, height: HEIGHT - 24, rx: 2.5 }),
    s("rect", { class: `fill-${kind}`, x: x + 14, y: y + 17, width: 8, height: 8, rx: 4 }),
    s("text", { class: `node-state text-${kind}`, x: x + 28, y: y + 25 }, vertex.status),
    s("text", { class: "node-time", x: x + width - 14, y: y + 25, "text-anchor": "end" }, isWide && lasts),
    s("text", { class: "node-name", x: x + 14, y: y + 52 }, fitting(vertex.name, CHARACTER.name)),
    s("text", { class: "node-what", x: x + 14, y: y + 72 }, fitting(what, CHARACTER.what)),
    progress?.share != null && [
      s("rect", { class: "meter-all", ...bar, width: inner }),
      s("rect", { class: `fill-${kind}`, ...bar, width: inner * progress.share }),
    ],
  );
}
