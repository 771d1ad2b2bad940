// Logging in: at the issuer, where the cluster has one, or with a token.

import { h } from "../dom.js";
import { leave } from "../issuer.js";

/**
 * @param issuer URL of the cluster's OpenID Connect provider; null if it has none.
 * @param said what went wrong before.
 */
export function view(shell, issuer, said) {
  const problem = h("p", { class: "problem", role: "alert", id: "login-problem" }, said);
  const field = h("input", {
    id: "token",
    type: "password",
    autocomplete: "current-password",
    required: true,
    spellcheck: "false",
    "aria-describedby": "login-help login-problem",
  });
  const button = h("button", { type: "submit", class: issuer ? undefined : "primary" }, issuer ? "Use the token" : "Log in");
  const busyWhile = async (pressed, work) => {
    pressed.disabled = true;
    try {
      await work();
    } catch (error) {
      problem.textContent = error.message;
    } finally {
      pressed.disabled = false;
    }
  };
  const go = (event) => {
    event.preventDefault();
    return busyWhile(button, async () => {
      if (await shell.submitToken(field.value.trim())) return;
      problem.textContent = "The server refuses this token.";
      field.select();
    });
  };
  const there =
    issuer &&
    h(
      "button",
      { type: "button", class: "primary", id: "issuer", title: issuer, on: { click: (event) => busyWhile(event.currentTarget, leave) } },
      `Log in with ${new URL(issuer).host}`,
    );
  return h(
    "form",
    { class: "card login", key: "login", on: { submit: go } },
    h("h1", { tabindex: "-1" }, "Log in"),
    issuer && [there, problem, h("p", { class: "muted" }, "Or with a token:")],
    h(
      "p",
      { id: "login-help" },
      "An admin issues a token with ",
      h("code", { class: "wrap" }, "understudy token add"),
      ". The cluster's own token is in the file that ",
      h("code", { class: "wrap" }, "rest.authentication.token-file"),
      " names. The page keeps it for this tab only.",
    ),
    h("label", { for: "token" }, "Token"),
    field,
    !issuer && problem,
    button,
  );
}
