// Tabs of one browser tell each other what changed, so that all show the same conversations.
import { newId } from "./tree.js";

const TAB = "eyas.tab";

/** Returns this tab's name, which survives a reload where the browser allows that. */
function ownName() {
  try {
    const name = sessionStorage.getItem(TAB) ?? newId();
    sessionStorage.setItem(TAB, name);
    return name;
  } catch {
    return newId();
  }
}

export class Tabs {
  constructor() {
    this.name = ownName();
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
