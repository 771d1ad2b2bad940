// Elements are made of tags, attributes and text nodes. Nothing here parses HTML, so data can never become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Attributes: `key` (which of its siblings it is), `on` ({event: handler}), the rest as in HTML. */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "key") node.key = String(value);
    else if (name === "on") setHandlers(node, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// Handlers are looked up when an event comes, so that a patched element has those of its newest rendering.
function setHandlers(node, handlers) {
  const known = node.handlers ?? {};
  node.handlers = handlers;
  for (const type of Object.keys(handlers)) {
    if (!(type in known)) node.addEventListener(type, (event) => node.handlers[type]?.(event));
  }
}

/** Replace what is in `target` by `nodes`, changing only what differs: scroll positions and the focus stay. */
export function render(target, nodes) {
  const focused = document.activeElement;
  const left = new Set([...target.querySelectorAll("[data-follow]")].filter((node) => !isAtEnd(node)));
  const fresh = document.createDocumentFragment();
  fresh.append(...[nodes].flat(Infinity).filter((node) => node !== null && node !== undefined && node !== false));
  patchChildren(target, fresh);
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  for (const node of target.querySelectorAll("[data-follow]")) if (!left.has(node)) node.scrollTop = node.scrollHeight;
}

// Who reads at the end of a log stays there when it grows; who has scrolled up is left where he is.
function isAtEnd(node) {
  return node.scrollHeight - node.scrollTop - node.clientHeight < 8;
}

function patch(live, fresh) {
  if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== fresh.data) live.data = fresh.data;
    return;
  }
  patchAttributes(live, fresh);
  if (fresh.handlers) setHandlers(live, fresh.handlers);
  patchChildren(live, fresh);
}

// What is open, chosen or typed belongs to the user, not to the next rendering.
const USERS_OWN = { DETAILS: ["open"], DIALOG: ["open"], INPUT: ["value", "checked"], OPTION: ["selected"] };

function patchAttributes(live, fresh) {
  const own = USERS_OWN[live.nodeName] ?? [];
  for (const { name, value } of fresh.attributes) {
    if (!own.includes(name) && live.getAttribute(name) !== value) live.setAttribute(name, value);
  }
  for (const { name } of [...live.attributes]) {
    if (!own.includes(name) && !fresh.hasAttribute(name)) live.removeAttribute(name);
  }
}

function patchChildren(live, fresh) {
  const wanted = [...fresh.childNodes];
  const keys = new Set(wanted.map((node) => node.key).filter((key) => key !== undefined));
  const keyed = new Map();
  for (const child of [...live.childNodes]) {
    if (child.key === undefined) continue;
    if (keys.has(child.key)) keyed.set(child.key, child);
    else child.remove();
  }
  let at = live.firstChild;
  for (const want of wanted) {
    const have = want.key === undefined ? at : keyed.get(want.key);
    if (!have || have.key !== want.key || have.nodeName !== want.nodeName) {
      live.insertBefore(want, at);
      continue;
    }
    if (have === at) at = at.nextSibling;
    else live.insertBefore(have, at);
    patch(have, want);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
