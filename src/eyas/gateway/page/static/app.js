// Assembles the page: views, settings, information about the server.
import { Chat } from "./chat.js";
import { LiveView } from "./live.js";
import { call } from "./stream.js";

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const dialog = $("settings");
const fields = dialog.querySelector("form").elements;
const NAMES = ["system", "effort", "temperature", "max_tokens", "seed", "tools"];

const stored = JSON.parse(localStorage.getItem("eyas.settings") ?? "{}");
for (const name of NAMES) fields[name].value = stored[name] ?? "";
const settings = () => Object.fromEntries(NAMES.map((name) => [name, fields[name].value.trim()]));

function toolsError() {
  const { tools } = settings();
  try {
    return !tools || Array.isArray(JSON.parse(tools)) ? "" : "This must be a list: [ … ].";
  } catch (error) {
    return `This is not JSON: ${error.message}.`;
  }
}

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

const live = new LiveView();
const chat = new Chat({ settings, onRequest: (id) => live.mark(id) });

const wide = matchMedia("(min-width: 1100px)");
function show(view) {
  root.dataset.view = view === "both" && !wide.matches ? "chat" : view;
  for (const button of document.querySelectorAll("[data-show]"))
    button.setAttribute("aria-pressed", button.dataset.show === root.dataset.view);
  follow();
}
/** Opens the feed only while it is visible: the engine is not observed for a hidden page. */
function follow() {
  live.follow(root.dataset.view !== "chat" && !document.hidden);
}
for (const button of document.querySelectorAll("[data-show]"))
  button.onclick = () => {
    location.replace(`#${button.dataset.show}`);
    show(button.dataset.show);
  };
wide.onchange = () => show(root.dataset.view);
document.addEventListener("visibilitychange", follow);
show(["live", "both"].includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");

$("new").onclick = () => {
  show(root.dataset.view === "live" ? "chat" : root.dataset.view);
  chat.reset();
};

const DRAFTERS = {
  eagle3: "An EAGLE-3 head drafts tokens, and the model verifies each of them.",
  ngram: "Prompt lookup drafts repeated text, and the model verifies each token.",
};
call("/ready")
  .then((response) => response.json())
  .then(({ model, drafter }) => {
    $("model").textContent = model;
    $("about").textContent = DRAFTERS[drafter] ?? "";
    document.title = `${model} · eyas`;
  })
  .catch(() => {}); // the banner shows the error once a message is sent
