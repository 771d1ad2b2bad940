// Asking before something is done that cannot be undone.

import { h, render } from "./dom.js";

/**
 * A modal question. The button that changes nothing has the focus; Escape means no.
 * @param choice words beside a box that may be ticked; without it there is none.
 * @param number words beside a field for a whole number from 1, which then has the focus; without it there is none.
 * @param act does it, and is told the number, or whether the box is ticked; while it has not succeeded the dialog stays, with what went wrong.
 */
export function confirm({ title, text, choice, number, verb, act }) {
  const back = document.activeElement;
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" });
  const close = () => {
    dialog.close();
    dialog.remove();
    if (back?.isConnected) back.focus();
  };
  let chosen = false;
  const choose = (event) => {
    chosen = number ? event.target.valueAsNumber : event.target.checked;
  };
  const draw = (busy, error) =>
    render(dialog, [
      h("h2", { id: "dialog-title" }, title),
      h("p", {}, text),
      choice && h("label", { class: "choice" }, h("input", { type: "checkbox", on: { change: choose } }), choice),
      number &&
        h(
          "label",
          { class: "field" },
          number,
          h("input", { type: "number", min: 1, step: 1, inputmode: "numeric", autofocus: true, on: { input: choose } }),
        ),
      h("p", { class: "problem", role: "alert" }, error),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", autofocus: !number, on: { click: close } }, "Leave it"),
        h("button", { type: "button", class: "danger", disabled: busy, on: { click: go } }, busy ? "Asking…" : verb),
      ),
    ]);
  async function go() {
    if (number && !(Number.isSafeInteger(chosen) && chosen >= 1)) return draw(false, "Give a whole number from 1.");
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
