// Elements: creating them, icons, numbers, the clipboard.

export const $ = (id) => document.getElementById(id);

/** Creates an element: h("button", { class: "quiet", onclick }, "Copy"). Text stays text. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Returns a picture of icons.svg. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `/page/icons.svg#${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export const action = (label, onclick, attributes = {}) =>
  h("button", { type: "button", class: "quiet", onclick, ...attributes }, label);

/** Returns a button that is a picture; `label` says what it does. */
export const iconButton = (name, label, onclick, attributes = {}) =>
  h("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick, ...attributes }, icon(name));

/** Returns a hidden input for files; `take` gets those that a person chose. */
export function filePicker(take, attributes) {
  const picker = h("input", { type: "file", multiple: true, hidden: true, ...attributes });
  picker.onchange = () => take([...picker.files]).then(() => (picker.value = ""));
  return picker;
}

/** Returns a file's text; null unless it is UTF-8. */
export const textOf = async (file) => {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return null;
  }
};

/** Calls `send` where a person presses Enter without Shift. */
export const onEnter = (area, send) =>
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });

export const format = (number, digits = 0) =>
  number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export const readable = (bytes) =>
  bytes < 2 ** 20 ? `${format(Math.ceil(bytes / 1024))} KiB` : `${format(bytes / 2 ** 20, 1)} MiB`;

/** A text of this browser ("local") or tab ("session"); null where none is, or no store. */
export function remembered(kind, name) {
  try {
    return globalThis[`${kind}Storage`].getItem(name);
  } catch {
    return null;
  }
}

export function remember(kind, name, text) {
  try {
    globalThis[`${kind}Storage`].setItem(name, text);
  } catch {} // no store
}

/** Copies a text. Browsers have no clipboard for plain http from another name; a selection is copied there too. */
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      return await navigator.clipboard.writeText(text);
    } catch {} // not allowed here: the selection may be
  }
  const focused = document.activeElement;
  const area = h("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!isCopied) throw new Error("The browser did not copy.");
}

/** Returns a button that copies what `read` returns, and says so. */
export function copyButton(read) {
  const button = action("Copy", async () => {
    const isCopied = await copy(read()).then(() => true, () => false);
    button.textContent = isCopied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** Offers a text as a file. */
export function download(name, text, type) {
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
