// The chat of a page with all around it: the store, the list of conversations, their settings.
import { $ } from "../dom.js";
import { Library } from "../keep/library.js";
import { Store } from "../keep/store.js";
import { Tabs } from "../keep/tabs.js";
import { Chat } from "./chat.js";
import { Settings } from "./settings.js";

/** Returns the chat; `onTalk` gets each conversation that is shown or changed. */
export function chatOfPage({ onRequest, onTalk = () => {} }) {
  const store = new Store((fault) => {
    $("store-fault").textContent = fault;
    $("store-fault").hidden = !fault;
  });
  const tabs = new Tabs();
  let library = null;
  const onShow = (talk) => {
    onTalk(talk);
    library?.refresh();
  };
  const chat = new Chat({ store, tabs, onRequest, onTalk: onShow });
  library = new Library({ store, tabs, chat });
  const settings = new Settings({ current: () => chat.talk.settings, onChange: (given) => chat.set(given) });
  $("open-settings").onclick = () => settings.open();
  chat.restore();
  return chat;
}
