// Assembles the page: views, settings, information about the server.
import { Chat } from "./chat.js";
import { LiveView } from "./live.js";
import { settingsDialog, views } from "./shell.js";
import { call } from "./stream.js";

const $ = (id) => document.getElementById(id);

const live = new LiveView();
const chat = new Chat({ settings: settingsDialog(), onRequest: (id) => live.mark(id) });
const view = views({ first: "chat", follow: (isSeen) => live.follow(isSeen) });

$("new").onclick = () => {
  view.show(view.current() === "live" ? "chat" : view.current());
  chat.reset();
};

const DRAFTERS = {
  eagle3: "An EAGLE-3 head drafts tokens, and the model verifies each of them.",
  ngram: "Prompt lookup drafts repeated text, and the model verifies each token.",
};
call("/ready")
  .then((response) => response.json())
  .then(({ model: name, drafter, simulated }) => {
    const model = simulated ? `${name} (SIMULATED: random weights, or none)` : name;
    $("model").textContent = model;
    $("about").textContent = DRAFTERS[drafter] ?? "";
    document.title = `${model} · eyas`;
  })
  .catch(() => {}); // the banner shows the error once a message is sent
