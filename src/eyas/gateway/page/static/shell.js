// What pages with a chat share: the dialog of settings, and views that fit the window.
const $ = (id) => document.getElementById(id);
const NAMES = ["system", "effort", "temperature", "max_tokens", "seed", "tools"];

/** Fills the dialog from this browser's storage, and returns a function that reads it. */
export function settingsDialog() {
  const dialog = $("settings");
  const fields = dialog.querySelector("form").elements;
  const stored = JSON.parse(localStorage.getItem("eyas.settings") ?? "{}");
  for (const name of NAMES) fields[name].value = stored[name] ?? "";
  const settings = () => Object.fromEntries(NAMES.map((name) => [name, fields[name].value.trim()]));
  const toolsError = () => {
    const { tools } = settings();
    try {
      return !tools || Array.isArray(JSON.parse(tools)) ? "" : "This must be a list: [ … ].";
    } catch (error) {
      return `This is not JSON: ${error.message}.`;
    }
  };
  $("open-settings").onclick = () => dialog.showModal();
  dialog.querySelector("form").onsubmit = (event) => {
    $("tools-error").textContent = toolsError();
    if (!toolsError()) return;
    event.preventDefault();
    fields.tools.closest("details").open = true;
    fields.tools.focus();
  };
  dialog.onclose = () => {
    if (toolsError()) fields.tools.value = "";
    localStorage.setItem("eyas.settings", JSON.stringify(settings()));
  };
  return settings;
}

/**
 * Switches between chat, both and live, `first` until the address names one. `follow(isSeen)` hears whether the live
 * view is visible: nothing is observed for a hidden page.
 */
export function views({ first, follow }) {
  const root = document.documentElement;
  const wide = matchMedia("(min-width: 1100px)");
  const tell = () => follow(root.dataset.view !== "chat" && !document.hidden);
  function show(view) {
    root.dataset.view = view === "both" && !wide.matches ? "chat" : view;
    for (const button of document.querySelectorAll("[data-show]"))
      button.setAttribute("aria-pressed", button.dataset.show === root.dataset.view);
    tell();
  }
  for (const button of document.querySelectorAll("[data-show]"))
    button.onclick = () => {
      location.replace(`#${button.dataset.show}`);
      show(button.dataset.show);
    };
  wide.onchange = () => show(root.dataset.view);
  document.addEventListener("visibilitychange", tell);
  const named = location.hash.slice(1);
  show(["chat", "live", "both"].includes(named) ? named : first);
  return { show, current: () => root.dataset.view };
}
