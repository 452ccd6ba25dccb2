// Assembles the router's page: the chat, and next to it backends and events.
import { Backends } from "./backends.js";
import { Chat } from "./chat.js";
import { settingsDialog, views } from "./shell.js";
import { call, h, key } from "./stream.js";

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

const backends = new Backends({ onStatus: offer });
const dialog = settingsDialog();
const chat = new Chat({ settings: () => ({ ...dialog(), model: to.value }), onRequest() {} });
const view = views({ first: "both", follow: (isSeen) => backends.follow(isSeen) });

$("new").onclick = () => {
  view.show(view.current() === "live" ? "chat" : view.current());
  chat.reset();
};

to.onchange = () => localStorage.setItem("eyas.to", to.value);

/** Fills the choice of models and routes, once for each set of them. */
function offer({ models, routes }) {
  const names = models.map(({ name }) => name);
  const lanes = routes.length ? ["route/auto", ...routes.map(({ name }) => `route/${name}`)] : [];
  const all = [...names, ...lanes];
  if (all.join() === [...to.options].map(({ value }) => value).join()) return;
  const chosen = to.value || localStorage.getItem("eyas.to");
  const group = (label, values) => h("optgroup", { label }, ...values.map((value) => h("option", { value }, value)));
  to.replaceChildren(group("Models", names), ...(lanes.length ? [group("Routes", lanes)] : []));
  if (all.includes(chosen)) to.value = chosen;
  $("model").textContent = names.join(", ");
}

function describe() {
  call("/router/status")
    .then((response) => response.json())
    .then(offer)
    .catch(() => {}); // the view of backends, or the banner of the chat, shows the error
}
describe();
