// Tabs of one browser tell each other what changed, so that all show the same conversations.
import { remember, remembered } from "../dom.js";
import { newId } from "./tree.js";

const TAB = "eyas.tab";

export class Tabs {
  constructor() {
    this.name = remembered("session", TAB) ?? newId(); // survives a reload where the browser allows that
    remember("session", TAB, this.name);
    this.channel = new BroadcastChannel("eyas");
  }

  /** `kind` is "changed" or "deleted"; without an id it is about all conversations. */
  tell(kind, id = null) {
    this.channel.postMessage({ kind, id });
  }

  listen(onNews) {
    this.channel.onmessage = ({ data }) => onNews(data);
  }
}
