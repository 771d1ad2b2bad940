// Asking before something is done that cannot be undone.

import { h, render } from "./dom.js";

/**
 * A modal question. The button that changes nothing has the focus; Escape means no.
 * @param act does it; while it has not succeeded the dialog stays, with what went wrong.
 */
export function confirm({ title, text, verb, act }) {
  const back = document.activeElement;
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" });
  const close = () => {
    dialog.close();
    dialog.remove();
    if (back?.isConnected) back.focus();
  };
  const draw = (busy, error) =>
    render(dialog, [
      h("h2", { id: "dialog-title" }, title),
      h("p", {}, text),
      h("p", { class: "problem", role: "alert" }, error),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", autofocus: true, on: { click: close } }, "Leave it"),
        h("button", { type: "button", class: "danger", disabled: busy, on: { click: go } }, busy ? "Asking…" : verb),
      ),
    ]);
  async function go() {
    draw(true, "");
    try {
      await act();
      close();
    } catch (error) {
      draw(false, error.message);
    }
  }
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    close();
  });
  draw(false, "");
  document.body.append(dialog);
  dialog.showModal();
}
