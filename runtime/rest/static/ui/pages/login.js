// Asking for the token.

import { h } from "../dom.js";

/** @param refused whether a token was shown that is no longer good. */
export function view(shell, refused) {
  const said = refused ? "The token is not good any more." : "";
  const problem = h("p", { class: "problem", role: "alert", id: "login-problem" }, said);
  const field = h("input", {
    id: "token",
    type: "password",
    autocomplete: "current-password",
    required: true,
    spellcheck: "false",
    "aria-describedby": "login-help login-problem",
  });
  const button = h("button", { type: "submit", class: "primary" }, "Log in");
  const go = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      if (!(await shell.submitToken(field.value.trim()))) {
        problem.textContent = "The server refuses this token.";
        field.select();
      }
    } catch (error) {
      problem.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  };
  return h(
    "form",
    { class: "card login", key: "login", on: { submit: go } },
    h("h1", { tabindex: "-1" }, "Log in"),
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
    problem,
    button,
  );
}
