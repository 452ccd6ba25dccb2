// The list of conversations: search, rename, delete, export and import.
import { $, action, download, filePicker, h, iconButton } from "../dom.js";
import { BadFile, fileName, read, toJson, toMarkdown } from "./exchange.js";
import { titleOf } from "./tree.js";

const WIDE = matchMedia("(min-width: 900px)");
const SEARCH_MS = 150;

export class Library {
  constructor({ store, tabs, chat }) {
    Object.assign(this, { store, tabs, chat });
    this.search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search conversations", autocomplete: "off" });
    this.list = h("ul", { class: "talks" });
    this.empty = h("p", { class: "note" });
    this.fault = h("p", { class: "error", role: "alert" });
    this.picker = filePicker((chosen) => this.take(chosen), { accept: ".json,.md,.markdown,.txt", "aria-label": "Files to import" });
    const head = h(
      "div",
      { class: "library-head" },
      h("h2", {}, "Conversations"),
      iconButton("new", "New conversation", () => this.begin()),
      iconButton("close", "Close the list", () => this.toggle(false), { id: "close-library" }),
    );
    const foot = h(
      "div",
      { class: "library-foot" },
      action("Import", () => this.picker.click()),
      action("Export all", () => this.exportAll()),
      action("Delete all", () => this.confirm("Delete all conversations?", "They are", () => this.clear())),
    );
    this.element = $("library");
    this.element.append(head, this.search, this.fault, this.empty, this.list, foot, this.picker);
    this.search.oninput = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.refresh(), SEARCH_MS);
    };
    this.element.onkeydown = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it stops no answer
      if (!WIDE.matches) this.toggle(false);
    };
    $("open-library").onclick = () => this.toggle(this.element.hidden);
    WIDE.onchange = () => this.toggle(WIDE.matches, false);
    const hasRoom = innerWidth >= 1500 || document.documentElement.dataset.view === "chat";
    this.toggle(WIDE.matches && hasRoom, false);
  }

  toggle(isOpen, isAsked = true) {
    this.element.hidden = !isOpen;
    $("open-library").setAttribute("aria-expanded", isOpen);
    if (isOpen) this.refresh();
    if (isAsked) (isOpen ? this.search : $("open-library")).focus();
  }

  begin() {
    this.chat.reset();
    if (!WIDE.matches) this.toggle(false);
  }

  /** Shows the list again, now and not once for each of many calls. */
  async refresh() {
    if (this.isBusy) return (this.isStale = true);
    if (this.element.hidden) return;
    this.isBusy = true;
    try {
      const words = this.search.value.trim();
      const [heads, found] = await Promise.all([this.store.list(), words ? this.store.search(words) : null]);
      this.draw(found ? heads.filter(({ id }) => found.has(id)) : heads, words);
    } catch (error) {
      this.fault.textContent = `The list cannot be read: ${error.message}`;
    }
    this.isBusy = false;
    if (this.isStale) {
      this.isStale = false;
      this.refresh();
    }
  }

  draw(heads, words) {
    const text = words ? "No conversation has these words." : "Your conversations will be listed here.";
    this.empty.textContent = heads.length ? "" : text;
    const state = JSON.stringify([heads.map(({ id, title }) => [id, title]), this.chat.talk.id]);
    if (state === this.drawn || this.list.querySelector("form")) return; // nothing new, or a title is being typed
    this.drawn = state;
    const focused = document.activeElement?.closest?.(".talks li")?.dataset.talk;
    this.list.replaceChildren(...heads.map((head) => this.entry(head)));
    if (focused) [...this.list.children].find(({ dataset }) => dataset.talk === focused)?.querySelector("button").focus();
  }

  entry({ id, title }) {
    const isShown = id === this.chat.talk.id;
    const open = action(title, () => this.open(id), { class: "talk", "aria-current": isShown && "true", title });
    const more = iconButton("more", `More about ${title}`, () => this.menu(item, id, more), { "aria-expanded": "false" });
    const item = h("li", {}, open, more);
    item.dataset.talk = id;
    return item;
  }

  async open(id) {
    const talk = await this.store.read(id);
    if (talk && id !== this.chat.talk.id) this.chat.open(talk);
    if (!WIDE.matches) this.toggle(false);
    this.chat.composer.focus();
  }

  menu(item, id, more) {
    const open = item.querySelector(".menu");
    for (const one of this.list.querySelectorAll(".menu")) one.remove();
    for (const one of this.list.querySelectorAll("[aria-expanded]")) one.setAttribute("aria-expanded", "false");
    if (open) return;
    more.setAttribute("aria-expanded", "true");
    const give = (ending, type, write) => async () => {
      const talk = await this.store.read(id);
      download(fileName(talk, ending), write(talk), type);
    };
    item.append(
      h(
        "div",
        { class: "menu" },
        action("Rename", () => this.rename(item, id)),
        action("JSON", give("json", "application/json", (talk) => toJson([talk]))),
        action("Markdown", give("md", "text/markdown", toMarkdown)),
        action("Delete", () => this.confirm("Delete this conversation?", "It is", () => this.remove(id))),
      ),
    );
    item.querySelector(".menu button").focus();
  }

  async rename(item, id) {
    const talk = await this.store.read(id);
    const field = h("input", { "aria-label": "Title", maxlength: 200, required: true });
    field.value = titleOf(talk);
    const form = h("form", { class: "rename" }, field, h("button", { class: "quiet" }, "Rename"));
    const end = () => {
      form.remove();
      this.drawn = null;
      this.refresh();
    };
    form.onsubmit = async (event) => {
      event.preventDefault();
      const whole = this.chat.talk.id === id ? this.chat.talk : await this.store.read(id);
      if (whole) await this.store.write(Object.assign(whole, { title: field.value.trim(), titled: Date.now() }));
      this.tabs.tell("changed", id);
      end();
    };
    form.onkeydown = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end();
    };
    item.replaceChildren(form);
    field.select();
  }

  async remove(id) {
    if (this.chat.talk.id === id) this.chat.reset();
    await this.change(() => this.store.remove(id), "deleted", id);
  }

  async clear() {
    this.chat.reset();
    await this.change(() => this.store.clear(), "deleted");
  }

  async change(work, kind, id = null) {
    try {
      await work();
      this.fault.textContent = "";
      this.tabs.tell(kind, id);
    } catch (error) {
      this.fault.textContent = `This browser's store failed: ${error.message}`;
    }
    await this.refresh();
  }

  async exportAll() {
    const talks = await Promise.all((await this.store.list()).map(({ id }) => this.store.read(id)));
    download("conversations.json", toJson(talks.filter(Boolean)), "application/json");
  }

  /** Takes files that a person chose; what is wrong with one is said, and the others are taken. */
  async take(files) {
    this.fault.textContent = "";
    let last = null;
    for (const file of files) {
      try {
        for (const talk of await read(file)) {
          last = await this.store.write(talk);
          this.tabs.tell("changed", talk.id);
        }
      } catch (error) {
        if (!(error instanceof BadFile)) throw error;
        this.fault.textContent = error.message;
      }
    }
    if (last) this.chat.open(last);
    await this.refresh();
  }

  confirm(title, they, onYes) {
    const yes = h("button", { class: "primary", value: "yes" }, "Delete");
    const no = h("button", { class: "quiet", value: "no" }, "Cancel");
    const form = h("form", { method: "dialog" }, h("h2", { id: "sure-title" }, title), h("p", {}, `${they} only in this browser, and cannot be brought back.`), h("div", { class: "choices" }, no, yes));
    const dialog = h("dialog", { class: "sure", closedby: "any", "aria-labelledby": "sure-title" }, form);
    dialog.onclose = () => {
      dialog.remove();
      if (dialog.returnValue === "yes") onYes();
    };
    document.body.append(dialog);
    dialog.showModal();
  }
}
