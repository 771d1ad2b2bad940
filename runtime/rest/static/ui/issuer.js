// Logging in at the cluster's OpenID Connect provider: going there, and coming back with a code.
// The tab keeps the secret of its log-in, so a return that another tab or site has begun logs nobody in here.

import { ApiError, Unreachable, getJson, post, setLogin } from "./api.js";

const PENDING = "understudy-pending";

/** The URL of the issuer; null where the cluster has none. */
export async function issuerOf() {
  try {
    return (await getJson("login")).issuer;
  } catch (error) {
    if (error instanceof ApiError || error instanceof Unreachable) return null;
    throw error;
  }
}

/** Leave for the issuer. */
export async function leave() {
  const { url, verifier } = await post("login/begin", {});
  sessionStorage.setItem(PENDING, JSON.stringify({ verifier, hash: location.hash }));
  location.assign(url);
}

/**
 * What the issuer has sent back with the browser; null where nothing was. It is taken out of the address and its
 * secret is forgotten at once, so a reload or a step back repeats nothing.
 */
export function arrived() {
  const query = new URLSearchParams(location.search);
  if (!query.has("state") || !(query.has("code") || query.has("error"))) return null;
  const { verifier = "", hash = "" } = JSON.parse(sessionStorage.getItem(PENDING) ?? "{}");
  sessionStorage.removeItem(PENDING);
  history.replaceState(null, "", location.pathname + hash);
  const names = ["state", "code", "error", "error_description"];
  const told = names.filter((name) => query.has(name)).map((name) => [name, query.get(name)]);
  return { verifier, ...Object.fromEntries(told) };
}

/** Log in with what has arrived. Throws ApiError, Unreachable. */
export async function finish(arrival) {
  if (!arrival.verifier) throw new ApiError(403, ["this log-in was not started in this tab; begin the log-in again"]);
  setLogin(await post("login/finish", arrival));
}
