// The conversation that is shown: asking, streamed answers, branches, keeping it, and other tabs.
import { $, format, icon, onEnter, remember, remembered } from "../dom.js";
import * as tree from "../keep/tree.js";
import { isElsewhere, messageView, resize, statistics } from "./answer.js";
import { Banner } from "./banner.js";
import { Files, guess } from "./files.js";
import { receive, requestBody } from "./receive.js";
import { defaults } from "./settings.js";

const CURRENT = "eyas.talk"; // this tab's conversation, in its session
const KEEP_MS = 1000; // how often a growing answer is kept
const NEAR = 40; // pixels from the end

export class Chat {
  /** `onRequest` gets the ids of this page's requests, `onTalk` each conversation that is shown or changed. */
  constructor({ store, tabs, onRequest = () => {}, onTalk = () => {} }) {
    Object.assign(this, { store, tabs, onRequest, onTalk, top: 0 });
    this.log = $("log");
    this.composer = $("input");
    this.banner = new Banner($("banner"));
    this.talk = tree.newTalk(defaults());
    this.context = null; // tokens, once the server told
    this.controller = null;
    this.answering = null; // the message that is being received
    this.views = new Map();
    this.files = new Files({
      list: $("files"),
      model: () => this.talk.settings.model,
      onFault: (text) => this.banner.say(text),
      onChange: () => this.measure(),
    });
    this.files.watch(document.body, this.composer);
    this.listen();
    this.render();
    if (matchMedia("(pointer: fine)").matches) this.composer.focus();
  }

  listen() {
    $("composer").onsubmit = (event) => {
      event.preventDefault();
      if (this.controller) this.stop();
      else this.send();
    };
    onEnter(this.composer, () => this.controller || this.send());
    this.composer.oninput = () => {
      resize(this.composer);
      this.measure();
    };
    $("attach").onclick = () => this.files.picker.click();
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) this.stop();
    });
    this.log.onscroll = () => this.scrolled();
    this.log.onclick = ({ target }) => {
      if (target.closest("summary")) this.isFollowing = false;
    };
    const observer = new ResizeObserver(() => (this.isFollowing ? this.toEnd() : this.scrolled()));
    for (const one of [this.log, $("messages")]) observer.observe(one);
    $("latest").onclick = () => this.toEnd();
    this.tabs.listen((news) => this.hear(news));
  }

  // -- which conversation --

  /** Shows the conversation that this tab had before it was loaded again. */
  async restore() {
    const id = remembered("session", CURRENT);
    const talk = id && (await this.store.read(id).catch(() => null));
    if (talk && !this.talk.leaf) this.open(talk);
  }

  open(talk) {
    this.stop();
    this.answering = null;
    this.talk = talk;
    remember("session", CURRENT, talk.id);
    this.banner.hide();
    this.files.clear();
    this.render({ isWhole: true });
    this.toEnd();
    this.measure();
    this.onTalk(talk);
  }

  reset() {
    const { model } = this.talk.settings;
    this.open(tree.newTalk({ ...(model && { model }), ...defaults() }));
    this.composer.focus();
  }

  /** Takes over new settings. */
  set(settings) {
    Object.assign(this.talk, { settings, configured: Date.now() });
    if (this.talk.leaf) this.keep();
    this.onTalk(this.talk);
  }

  /** Hears what another tab did. */
  async hear({ kind, id }) {
    if (kind === "deleted") {
      const isMine = this.talk.leaf && (id === null || id === this.talk.id);
      if (id || isMine) this.store.forget(id ?? this.talk.id);
      if (isMine) {
        this.reset();
        this.banner.say("This conversation was deleted in another tab.");
      }
    } else if (id === this.talk.id && !this.controller) {
      const talk = await this.store.read(id);
      if (talk && id === this.talk.id && !this.controller) this.replace(talk);
    }
    this.onTalk(this.talk);
  }

  replace(talk) {
    this.talk = talk;
    this.render();
    clearTimeout(this.watching);
    // Whether the other tab is still there is seen by what it keeps.
    if (tree.path(talk).some((one) => isElsewhere(one, this.tabs.name))) this.watching = setTimeout(() => this.render({ isWhole: true }), 6000);
  }

  /** Keeps a conversation, with what other tabs added to it. */
  async keep(talk = this.talk) {
    const whole = await this.store.write(talk);
    if (!whole) return;
    for (const [id, message] of Object.entries(whole.messages)) talk.messages[id] ??= message;
    const { title, titled, settings, configured } = tree.merged(talk, whole);
    Object.assign(talk, { title, titled, settings, configured });
    remember("session", CURRENT, this.talk.id);
    this.tabs.tell("changed", talk.id);
    this.onTalk(this.talk);
  }

  // -- asking --

  send() {
    const text = this.composer.value.trim();
    if (!text && !this.files.files.length) return;
    this.composer.value = "";
    resize(this.composer);
    const files = this.files.give();
    this.ask([{ role: "user", content: text, ...(files.length && { files }) }]);
  }

  ask(messages) {
    if (this.talk.leaf === null) this.talk.created = Date.now();
    for (const message of messages) tree.add(this.talk, message);
    this.answer();
  }

  results(messages) {
    if (!this.controller) this.ask(messages);
  }

  /** Asks an edited question beside the one before. */
  branch(message, content) {
    this.talk.leaf = message.parent;
    this.ask([{ role: "user", content, ...(message.files && { files: message.files }) }]);
    this.composer.focus();
  }

  /** Asks again from the last message that was not the model's; the answer before stays as another version. */
  regenerate() {
    if (this.controller) return;
    while (this.talk.messages[this.talk.leaf]?.role === "assistant") this.talk.leaf = this.talk.messages[this.talk.leaf].parent;
    if (this.talk.leaf !== null) this.answer();
    this.composer.focus();
  }

  /** Shows another version of a message. */
  show(id) {
    if (this.controller) return;
    const { ariaLabel } = document.activeElement; // of a button that is made again
    tree.choose(this.talk, id);
    this.render();
    const buttons = [...this.views.get(id).view.element.querySelectorAll(".versions :enabled")];
    (buttons.find((one) => one.ariaLabel === ariaLabel) ?? buttons[0]).focus();
    this.keep();
  }

  stop() {
    this.controller?.abort();
  }

  async answer() {
    const talk = this.talk;
    const body = requestBody(tree.path(talk), talk.settings);
    const message = tree.add(talk, { role: "assistant", content: "", reasoning: "", calls: [], tab: this.tabs.name });
    const controller = (this.controller = new AbortController());
    this.answering = message;
    this.banner.hide();
    this.render();
    this.toEnd();
    this.busy(true);
    message.beat = Date.now();
    this.keep();
    let error = null;
    const onChange = () => {
      this.draw();
      if (Date.now() - message.beat < KEEP_MS) return;
      message.beat = Date.now();
      if (this.talk === talk) this.keep();
    };
    try {
      await receive(message, body, { signal: controller.signal, onChange, onRequest: this.onRequest });
    } catch (caught) {
      error = caught;
    }
    if (this.controller === controller) this.controller = null;
    const isStopped = controller.signal.aborted;
    message.finish = isStopped ? "stopped" : error ? "cut" : (message.ended ?? "stop");
    for (const name of ["waiting", "tab", "beat", "ended"]) delete message[name];
    if (this.talk !== talk) {
      // Another conversation was opened meanwhile.
      this.busy(Boolean(this.controller));
      return this.keep(talk);
    }
    this.answering = null;
    this.busy(false);
    this.close(message, isStopped ? null : error, isStopped);
  }

  /** Keeps the text so far, and shows how it ended. */
  close(message, error, isStopped) {
    const isEmpty = tree.isEmpty(message);
    if (isEmpty && error) {
      tree.drop(this.talk, message);
      this.render();
    } else this.views.get(message.id)?.view.finish();
    this.keep();
    this.measure();
    if (error) this.banner.explain(error, { isCut: !isEmpty, again: () => this.regenerate() });
    else $("status").textContent = isStopped ? "Stopped." : `Answer complete. ${statistics(message)}`;
  }

  // -- display --

  /** Draws at most once a frame, however fast chunks come. */
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.views.get(this.answering?.id)?.view.update();
    });
  }

  /** Shows the branch; a message that did not change keeps its elements. */
  render({ isWhole = false } = {}) {
    const messages = tree.path(this.talk);
    const below = tree.families(this.talk);
    $("empty").hidden = messages.length > 0;
    const before = isWhole ? new Map() : this.views;
    this.views = new Map();
    messages.forEach((message, n) => {
      const ids = below.get(message.parent);
      const place = { isLast: n === messages.length - 1, versions: { ids, n: ids.indexOf(message.id) } };
      const { content, reasoning = "", finish } = message;
      const state = [place.isLast, ids.length, place.versions.n, content.length, reasoning.length, finish, message === this.answering].join();
      const old = before.get(message.id);
      this.views.set(message.id, old?.state === state ? old : { state, view: messageView(message, this, place) });
    });
    const elements = [...this.views.values()].map(({ view }) => view.element);
    const list = $("messages");
    let same = 0;
    while (same < elements.length && list.children[same] === elements[same]) same++;
    while (list.children.length > same) list.lastChild.remove();
    for (const element of elements.slice(same)) list.append(element);
  }

  busy(on) {
    this.log.setAttribute("aria-busy", on);
    $("send").replaceChildren(icon(on ? "stop" : "send"));
    $("send").ariaLabel = $("send").title = on ? "Stop" : "Send";
    if (on) $("status").textContent = "Answering.";
  }

  /** Shows how much of the context the next question takes, once that is worth knowing. */
  measure() {
    const room = $("room");
    if (!this.context) return (room.textContent = "");
    const { usage } = tree.path(this.talk).findLast((message) => message.usage) ?? {};
    const before = usage ? usage.prompt_tokens + usage.completion_tokens : 0;
    const count = before + this.files.tokens + guess(this.composer.value);
    const isShown = this.files.files.length || count > this.context / 4;
    room.textContent = isShown ? `about ${format(count)} of ${format(this.context)} tokens of context` : "";
    room.classList.toggle("error", count > this.context);
  }

  /** Sees whether to follow the end: until a person scrolls up or opens something, and again once it is in sight. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    if (!clientHeight) return; // it is hidden
    const below = scrollHeight - scrollTop - clientHeight;
    if (below < NEAR) this.isFollowing = below < 2 || scrollTop >= this.top;
    else if (scrollTop < this.top) this.isFollowing = false;
    this.top = scrollTop;
    $("latest").hidden = below < NEAR;
  }

  toEnd() {
    this.isFollowing = true;
    this.log.scrollTop = this.log.scrollHeight;
    this.scrolled();
  }
}
