// Assembles the page: views, chat, information about the server.
import { $ } from "./dom.js";
import { chatOfPage } from "./chat/page.js";
import { LiveView } from "./live/live.js";
import { views } from "./shell.js";
import { call } from "./stream.js";

const live = new LiveView();
const chat = chatOfPage({ onRequest: (id) => live.mark(id) });
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
  .then(({ model: name, drafter, simulated, context }) => {
    const model = simulated ? `${name} (SIMULATED: random weights, or none)` : name;
    $("model").textContent = model;
    $("about").textContent = DRAFTERS[drafter] ?? "";
    document.title = `${model} · eyas`;
    chat.context = context;
    chat.measure();
    live.know(drafter);
  })
  .catch(() => {}); // the banner shows the error once a message is sent
