// Assembles the router's page: the chat, and next to it backends and events.
import { Backends } from "./backends.js";
import { chatOfPage } from "./chat/page.js";
import { views } from "./shell.js";
import { h } from "./dom.js";
import { call, key } from "./stream.js";

const $ = (id) => document.getElementById(id);
const to = $("to");

// The key of a router starts and stops engines: it is kept in this page's memory alone.
let secret = null;
key.note = "The key is kept until this page is closed or loaded again.";
key.get = () => secret;
key.set = (text) => {
  secret = text;
  backends.retry();
  describe();
};

let last = null; // the model that was chosen last
try {
  last = localStorage.getItem("eyas.to");
} catch {} // no store

const backends = new Backends({ onStatus: offer });
const chat = chatOfPage({ onTalk: choose });
const view = views({ first: "both", follow: (isSeen) => backends.follow(isSeen) });

$("new").onclick = () => {
  view.show(view.current() === "live" ? "chat" : view.current());
  chat.reset();
};

to.onchange = () => {
  last = to.value;
  try {
    localStorage.setItem("eyas.to", last);
  } catch {} // no store
  chat.set({ ...chat.talk.settings, model: last });
};

/** Shows the model of a conversation; one without a model gets what was chosen last. */
function choose(talk) {
  const names = [...to.options].map(({ value }) => value);
  const { model } = talk.settings;
  if (!names.length) return;
  const wanted = [model, last, names[0]].find((name) => names.includes(name));
  to.value = wanted;
  if (model !== wanted) talk.settings = { ...talk.settings, model: wanted };
}

/** Fills the choice of models and routes, once for each set of them. */
function offer({ models, routes }) {
  const names = models.map(({ name }) => name);
  const lanes = routes.length ? ["route/auto", ...routes.map(({ name }) => `route/${name}`)] : [];
  const all = [...names, ...lanes];
  if (all.join() === [...to.options].map(({ value }) => value).join()) return;
  const group = (label, values) => h("optgroup", { label }, ...values.map((value) => h("option", { value }, value)));
  to.replaceChildren(group("Models", names), ...(lanes.length ? [group("Routes", lanes)] : []));
  choose(chat.talk);
  $("model").textContent = names.join(", ");
}

function describe() {
  call("/router/status")
    .then((response) => response.json())
    .then(offer)
    .catch(() => {}); // the view of backends, or the banner of the chat, shows the error
}
describe();
