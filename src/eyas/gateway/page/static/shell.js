// The views of a page: chat, live or both, as far as they fit the window.
/**
 * Switches between chat, both and live, `first` until the address names one. `follow(isSeen)` hears whether the live
 * view is visible: nothing is observed for a hidden page.
 */
export function views({ first, follow }) {
  const root = document.documentElement;
  const buttons = document.querySelectorAll("[data-show]");
  const wide = matchMedia("(min-width: 1100px)");
  const tell = () => follow(root.dataset.view !== "chat" && !document.hidden);
  function show(view) {
    root.dataset.view = view === "both" && !wide.matches ? "chat" : view;
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.show === root.dataset.view);
    tell();
  }
  for (const button of buttons)
    button.onclick = () => {
      location.replace(`#${button.dataset.show}`);
      show(button.dataset.show);
    };
  wide.onchange = () => show(root.dataset.view);
  document.addEventListener("visibilitychange", tell);
  const named = location.hash.slice(1).split("/")[0];
  show(["chat", "live", "both"].includes(named) ? named : first);
  return { show, current: () => root.dataset.view };
}
