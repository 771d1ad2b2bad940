// The theme: the system's own, light or dark. A choice is kept in this browser.
(() => {
  const KEY = "understudy-theme";
  const root = document.documentElement;
  const names = ["auto", "light", "dark"];

  function chosen() {
    try {
      const kept = localStorage.getItem(KEY);
      return names.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // storage may be forbidden
    }
  }

  function apply(name) {
    if (name === "auto") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", name);
    const button = document.getElementById("theme");
    if (button) button.lastElementChild.textContent = name;
  }

  apply(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    apply(chosen());
    document.getElementById("theme").addEventListener("click", () => {
      const next = names[(names.indexOf(chosen()) + 1) % names.length];
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // It holds for this page then.
      }
      apply(next);
    });
  });
})();
