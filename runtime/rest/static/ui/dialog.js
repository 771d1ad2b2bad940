// Asking before something is done that cannot be undone.

import { h, render } from "./dom.js";

/**
 * A modal question. The button that changes nothing has the focus; Escape means no.
 * @param choice words beside a box that may be ticked; without it there is none.
 * @param act does it, and is told whether the box is ticked; while it has not succeeded the dialog stays, with what went wrong.
 */
export function confirm({ title, text, choice, verb, act }) {
  const back = document.activeElement;
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" });
  const close = () => {
    dialog.close();
    dialog.remove();
    if (back?.isConnected) back.focus();
  };
  let chosen = false;
  const choose = (event) => {
    chosen = event.target.checked;
  };
  const draw = (busy, error) =>
    render(dialog, [
      h("h2", { id: "dialog-title" }, title),
      h("p", {}, text),
      choice && h("label", { class: "choice" }, h("input", { type: "checkbox", on: { change: choose } }), choice),
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
      await act(chosen);
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
