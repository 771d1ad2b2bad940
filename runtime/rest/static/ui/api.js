// Asking the REST API. Addresses are relative, so the page works behind any prefix.
// The token is kept for this tab only and sent as a header: nothing goes along by itself, so no other site can use it.

const KEY = "understudy-token";
const TIMEOUT_MS = 20_000;

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

export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

/** The answer to a request of a relative path, without a slash in front. Throws ApiError, Unreachable, AbortError. */
export async function request(path, { method = "GET", body, headers = {}, signal } = {}) {
  const token = sessionStorage.getItem(KEY);
  const sent = { ...headers };
  if (token) sent.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, {
      method,
      body,
      headers: sent,
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
