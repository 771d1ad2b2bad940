// Asking the REST API. Addresses are relative, so the page works behind any prefix.
// The token is kept for this tab only and sent as a header: nothing goes along by itself, so no other site can use it.

const KEY = "understudy-token";
const LOGIN = "understudy-login"; // of a log-in at the issuer: what renews the token, and when
const TIMEOUT_MS = 20_000;
const RENEW_BEFORE_MS = 60_000;
const RETRY_MS = 30_000;

/** The server answered, and it was a refusal or a failure of its own. */
export class ApiError extends Error {
  constructor(status, messages) {
    super(messages.join("\n") || `the server answered ${status}`);
    this.status = status;
  }
}

/** Nobody answered. */
export class Unreachable extends Error {}

/** Hears of every answer and every silence; set by whoever shows the connection. */
export const witness = { heard() {}, silent() {} };

/** Keep a token for this tab; null forgets it. */
export function setToken(token) {
  sessionStorage.removeItem(LOGIN);
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Keep the tokens of the issuer, as the endpoint tells them. */
export function setLogin(told) {
  setToken(told.token);
  const lasts = told["expires-in"];
  const renewAt = Date.now() + Math.max(lasts - RENEW_BEFORE_MS, lasts / 2);
  sessionStorage.setItem(LOGIN, JSON.stringify({ refresh: told["refresh-token"], renewAt }));
}

/** Forget the token, and have the issuer revoke the login, if it is one. Throws ApiError, Unreachable. */
export async function logOut() {
  const told = { "refresh-token": keptLogin()?.refresh ?? "", token: sessionStorage.getItem(KEY) ?? "" };
  setToken(null);
  if (told["refresh-token"]) await post("login/end", told);
}

function keptLogin() {
  return JSON.parse(sessionStorage.getItem(LOGIN) ?? "null");
}

let renewal = null; // the one that all requests wait for, since a refresh token may work once only

function renewed() {
  const login = keptLogin();
  if (!login?.refresh || Date.now() < login.renewAt) return null;
  renewal ??= renew(login).finally(() => {
    renewal = null;
  });
  return renewal;
}

async function renew({ refresh }) {
  let next;
  try {
    const told = await post("login/renew", { "refresh-token": refresh });
    next = () => setLogin(told);
  } catch (error) {
    if (!(error instanceof ApiError || error instanceof Unreachable)) throw error;
    // The token may serve for a while. Once it does not, its user is asked to log in.
    const ended = error instanceof ApiError && error.status === 403;
    const kept = { refresh: ended ? "" : refresh, renewAt: Date.now() + RETRY_MS };
    next = () => sessionStorage.setItem(LOGIN, JSON.stringify(kept));
  }
  if (keptLogin()?.refresh === refresh) next(); // else a log-out has forgotten it meanwhile
}

/** The answer to a request of the log-in, which shows no token. Throws ApiError, Unreachable. */
export async function post(path, told) {
  const body = JSON.stringify({ ...told, address: location.origin + location.pathname });
  const response = await send(path, { method: "POST", body, headers: { "Content-Type": "application/json" } });
  return response.json();
}

/** The answer to a request of a relative path, without a slash in front. Throws ApiError, Unreachable, AbortError. */
export async function request(path, options = {}) {
  await renewed();
  const token = sessionStorage.getItem(KEY);
  return send(path, token ? { ...options, headers: { ...options.headers, Authorization: `Bearer ${token}` } } : options);
}

async function send(path, { method = "GET", body, headers = {}, signal }) {
  let response;
  try {
    response = await fetch(path, {
      method,
      body,
      headers,
      signal: signal ?? AbortSignal.timeout(TIMEOUT_MS),
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TimeoutError") throw new ApiError(0, [`no answer within ${TIMEOUT_MS / 1000} s to ${path}`]);
    witness.silent();
    throw new Unreachable(error.message);
  }
  witness.heard();
  if (!response.ok) throw new ApiError(response.status, await refusal(response));
  return response;
}

async function refusal(response) {
  const text = await response.text();
  try {
    const { errors } = JSON.parse(text);
    if (Array.isArray(errors)) return errors.map(String);
  } catch {
    // Not ours: something between the server and this page may have answered.
  }
  return [`${response.status} ${response.statusText}`.trim()];
}

export async function getJson(path) {
  return (await request(path)).json();
}

export async function getText(path) {
  return (await request(path)).text();
}

/** As getJson, but null where the server does not offer it. */
export async function getOptional(path) {
  try {
    return await getJson(path);
  } catch (error) {
    if (error instanceof ApiError && [404, 405, 501].includes(error.status)) return null;
    throw error;
  }
}

/** A path of encoded parts: names may hold anything. */
export function at(...parts) {
  return parts.map(encodeURIComponent).join("/");
}
