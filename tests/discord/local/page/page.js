// The page of a channel: what a person sees there, and what they can do.
const $ = (id) => document.getElementById(id);
const state = { since: -1, channel: "", viewer: new URLSearchParams(location.search).get("as") || "ann", view: null, replyTo: null, looks: 0 };

function el(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.filter((child) => child != null));
  return node;
}

async function act(action, args = {}) {
  const body = JSON.stringify({ action, author: state.viewer, channel: state.channel, ...args });
  const response = await fetch("local/do", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const result = await response.json();
  $("notice").textContent = response.ok ? (result?.state === "failed" ? "This interaction failed." : "") : result.error;
  return response.ok ? result : null;
}

// -- text: fences, inline code, bold, italics, quotes, mentions; everything else as it is

const INLINE = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(\*[^*\n]+\*)|(<@!?\d+>)/;

function inline(text) {
  const nodes = [];
  for (let found; (found = INLINE.exec(text)); text = text.slice(found.index + found[0].length)) {
    nodes.push(text.slice(0, found.index));
    const [whole, code, bold, italic] = found;
    if (code) nodes.push(el("code", { textContent: code.slice(1, -1) }));
    else if (bold) nodes.push(el("strong", {}, ...inline(bold.slice(2, -2))));
    else if (italic) nodes.push(el("em", {}, ...inline(italic.slice(1, -1))));
    else nodes.push(el("span", { className: "mention", textContent: "@" + (state.view.users[whole.replace(/\D/g, "")] ?? "unknown") }));
  }
  return [...nodes, text];
}

function markdown(text) {
  const nodes = [];
  text.split(/```(?:([\w+-]*)\n)?([\s\S]*?)```/).forEach((part, i) => {
    if (i % 3 === 2) nodes.push(el("pre", {}, el("code", { textContent: part.replace(/\n$/, "") })));
    if (i % 3 !== 0) return;
    (i ? part.replace(/^\n/, "") : part).split(/(^(?:> .*(?:\n|$))+)/m).forEach((piece) => {
      if (piece.startsWith("> ")) nodes.push(el("blockquote", {}, ...inline(piece.replace(/^> /gm, "").trimEnd())));
      else if (piece) nodes.push(...inline(piece));
    });
  });
  return nodes;
}

// -- messages

function buttonsOf(message) {
  const row = el("div", { className: "row" });
  for (const part of message.buttons) {
    const label = [part.emoji?.name, part.label].filter(Boolean).join(" ");
    const button = el("button", { type: "button", className: `style-${part.style}`, disabled: !!part.disabled, textContent: label });
    button.onclick = () => act("press", { message: message.id, button: part.custom_id });
    row.append(button);
  }
  return row;
}

function reactionsOf(message) {
  const row = el("div", { className: "row" });
  for (const { emoji, users } of message.reactions) {
    const button = el("button", { type: "button", title: users.join(", "), textContent: `${emoji} ${users.length}` });
    button.classList.toggle("mine", users.includes(state.viewer));
    button.onclick = () => act("react", { message: message.id, emoji });
    row.append(button);
  }
  return row;
}

function filesOf(message) {
  return el("div", { className: "row" }, ...message.files.map((file) =>
    el("a", { href: new URL(file.url).pathname, download: file.filename, textContent: `${file.filename} (${file.size} bytes)` })));
}

function actsOf(message) {
  const acts = el("span", { className: "acts" });
  const add = (name, onclick) => acts.append(el("button", { type: "button", textContent: name, onclick }));
  if (!message.is_private) {
    add("Reply", () => reply(message));
    add("👍", () => act("react", { message: message.id, emoji: "👍" }));
  }
  if (message.author === state.viewer) {
    add("Edit", async () => {
      const text = prompt("Edit the message", message.content);
      if (text != null) await act("edit", { message: message.id, text });
    });
    add("Delete", () => act("delete", { message: message.id }));
  }
  return acts;
}

function embedOf(embed) {
  const lines = [embed.title, embed.description, ...(embed.fields ?? []).map((field) => `${field.name}: ${field.value}`), embed.footer?.text];
  return el("div", { className: "embed" }, ...inline(lines.filter(Boolean).join("\n")));
}

function messageNode(message) {
  const quote = message.reply_to ? `${message.reply_to.author}: ${message.reply_to.content}` : message.command && `${message.asked_by} used ${message.command}`;
  const head = el("div", { className: "head" },
    el("b", { textContent: message.author }),
    message.is_bot ? el("span", { className: "tag", textContent: "APP" }) : null,
    el("time", { textContent: new Date(message.at_s * 1000).toLocaleTimeString() }),
    message.is_edited ? el("span", { className: "hint", textContent: "(edited)" }) : null,
    message.is_private ? el("span", { className: "hint", textContent: "Only you can see this" }) : null,
    actsOf(message));
  const body = el("div", { className: "body" }, ...(message.is_thinking ? ["Thinking..."] : markdown(message.content)));
  return el("article", { className: message.is_private ? "message private" : "message", id: `m${message.id}` },
    quote ? el("span", { className: "quote" }, ...inline(quote)) : null, head, body,
    ...message.embeds.map(embedOf), filesOf(message), buttonsOf(message), reactionsOf(message));
}

function reply(message) {
  state.replyTo = message?.id ?? null;
  $("replying").hidden = !message;
  if (message) {
    $("replying").firstElementChild.textContent = `Reply to ${message.author}: ${message.content.slice(0, 60)}`;
    $("text").focus();
  }
}

function fill(select, entries, value) {
  const wanted = JSON.stringify(entries);
  if (select.dataset.entries !== wanted) {
    select.dataset.entries = wanted;
    select.replaceChildren(...entries.map(([key, name]) => el("option", { value: key, textContent: name })));
  }
  select.value = value;
}

function show(view) {
  const main = $("messages");
  const isAtEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 40;
  const isOther = state.view?.channel !== view.channel;
  Object.assign(state, { view, since: view.version, channel: view.channel, viewer: view.viewer });
  fill($("channel"), view.channels.map((one) => [one.id, one.name]), view.channel);
  fill($("viewer"), view.people.map((name) => [name, name]), view.viewer);
  $("online").textContent = view.is_online ? `${view.bot} is online` : `${view.bot} is offline`;
  $("online").classList.toggle("good", view.is_online);
  const old = new Map([...main.children].map((node) => [node.id, node]));
  main.replaceChildren(...view.messages.map((message) => {
    const key = `m${message.id}`, drawn = JSON.stringify([message, view.viewer]);
    const kept = old.get(key);
    if (kept?.drawn === drawn) return kept;
    return Object.assign(messageNode(message), { drawn });
  }));
  if (!view.messages.length) main.append(el("p", { className: "hint", textContent: "No message yet." }));
  $("typing").textContent = view.is_typing ? `${view.bot} is typing...` : "";
  $("requests").replaceChildren(...view.requests.map((text) => el("li", { textContent: text })));
  $("violations").replaceChildren(...view.violations.map((text) => el("li", { textContent: text })));
  if (isAtEnd || isOther) main.scrollTop = main.scrollHeight;
}

// One look at a time; a change of channel or person starts a new one, whose answer alone is shown.
async function look() {
  const mine = ++state.looks;
  while (mine === state.looks) {
    try {
      const query = new URLSearchParams({ viewer: state.viewer, channel: state.channel, since: state.since });
      const view = await (await fetch(`local/view?${query}`)).json();
      if (mine === state.looks) show(view);
    } catch {
      $("online").textContent = "The local Discord does not answer";
      $("online").classList.remove("good");
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

function turn(change) {
  Object.assign(state, change, { since: -1 });
  reply(null);
  look();
}

// -- commands: /name option:value option:value

function parts(text) {
  const [, name, rest] = /^\/(\S*)\s*([\s\S]*)$/.exec(text) ?? [];
  const command = state.view?.commands.find((one) => one.name === name);
  const options = {};
  for (const [, key, value] of (rest ?? "").matchAll(/(\w+):\s*([\s\S]*?)(?=\s+\w+:|$)/g)) options[key] = value;
  return { name, command, options };
}

function suggest(entries) {
  $("suggestions").hidden = !entries.length;
  $("suggestions").replaceChildren(...entries.map(([text, hint, value]) => {
    const button = el("button", { type: "button", textContent: text }, el("small", { textContent: hint ?? "" }));
    button.onclick = () => { $("text").value = value; $("text").focus(); suggestions(); };
    return el("li", {}, button);
  }));
}

async function suggestions() {
  const text = $("text").value;
  if (!text.startsWith("/")) return suggest([]);
  const { name, command, options } = parts(text);
  if (!command) {
    const found = state.view.commands.filter((one) => one.type === 1 && one.name.startsWith(name));
    return suggest(found.map((one) => {
      const first = (one.options ?? []).map((option) => ` ${option.name}:`).slice(0, 1).join("");
      return [`/${one.name}`, one.description, `/${one.name}${first}`];
    }));
  }
  const [last, typed] = Object.entries(options).at(-1) ?? [];
  const option = command.options?.find((one) => one.name === last);
  const written = text.slice(0, text.length - (typed ?? "").length);
  if (option?.choices) return suggest(option.choices.filter((one) => one.name.includes(typed)).map((one) => [one.name, "", written + one.value]));
  if (!option?.autocomplete) return suggest([]);
  const result = await act("complete", { name, option: last, typed });
  if ($("text").value === text) suggest((result?.choices ?? []).map((one) => [one.name, "", written + one.value]));
}

// -- the composer

async function send() {
  const text = $("text").value.trim(), file = $("file").files[0];
  if (!text && !file) return;
  if (text.startsWith("/")) {
    const { name, options } = parts(text);
    $("text").value = "";
    suggest([]);
    await act("run", { name, options });
    return;
  }
  const files = {};
  if (file) files[file.name] = btoa(Array.from(new Uint8Array(await file.arrayBuffer()), (byte) => String.fromCharCode(byte)).join(""));
  if (await act("say", { text, files, mention: $("mention").checked, reply_to: state.replyTo })) {
    $("composer").reset();
    showFile();
    reply(null);
  }
}

function showFile() {
  $("file").parentElement.firstChild.textContent = `${$("file").files[0]?.name ?? "File"} `;
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$("text").addEventListener("input", suggestions);
$("file").addEventListener("change", showFile);
$("replying").lastElementChild.addEventListener("click", () => reply(null));
$("channel").addEventListener("change", () => turn({ channel: $("channel").value }));
$("viewer").addEventListener("change", () => turn({ viewer: $("viewer").value }));
$("join").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("name").value.trim();
  if (name && (await act("join", { author: name }))) { $("name").value = ""; turn({ viewer: name }); }
});
look();
