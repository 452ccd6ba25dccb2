// The settings of a conversation: a dialog, what new conversations begin with, and the fields of a request's body.
import { $, h, remember, remembered } from "../dom.js";

const STORE = "eyas.settings";
const TOOLS = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]';
const SCHEMA = '{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}';

const field = (tag, name, label, attributes, options = []) => {
  const build = () => h(tag, { name, ...attributes }, ...options.map(([value, text]) => h("option", { value }, text)));
  return { name, label, build };
};
const number = (name, label, placeholder, limits) => field("input", name, label, { type: "number", step: "any", placeholder, ...limits });
const select = (name, label, options) => field("select", name, label, {}, options);
const area = (name, label, attributes) => field("textarea", name, label, attributes);

const EFFORTS = [["", "model’s default"], ["low", "low"], ["medium", "medium"], ["high", "high"]];
const CHOICES = [["", "as the model likes"], ["none", "no tool"], ["required", "one of them"]];
const SAMPLING = [
  number("temperature", "Temperature", "model’s default", { min: 0, max: 100 }),
  number("top_p", "Top p", "1", { min: 0, max: 1 }),
  number("top_k", "Top k", "off", { min: -1, step: 1 }),
  number("min_p", "Min p", "0", { min: 0, max: 1 }),
  number("presence_penalty", "Presence penalty", "0", { min: -2, max: 2 }),
  number("frequency_penalty", "Frequency penalty", "0", { min: -2, max: 2 }),
  number("repetition_penalty", "Repetition penalty", "1", { min: 0.01, max: 100 }),
  number("seed", "Seed", "random", { min: 0, step: 1 }),
];
const JSON_NOTE = { spellcheck: "false", class: "mono" };
const FIRST = [select("effort", "Reasoning effort", EFFORTS), number("max_tokens", "Token limit", "no limit", { min: 1, step: 1 })];
const TOOL_FIELDS = [
  area("tools", "Functions that the model may call, as a JSON list", { rows: 7, placeholder: TOOLS, "aria-describedby": "tools-note tools-error", ...JSON_NOTE }),
  select("tool_choice", "Which it calls", CHOICES),
];
const SHAPE = [
  area("schema", "JSON schema that the answer must match", { rows: 6, placeholder: SCHEMA, "aria-describedby": "schema-error", ...JSON_NOTE }),
  area("stop", "Stop texts, one a line", { rows: 2, placeholder: "none" }),
];
const SYSTEM = area("system", "System prompt", { rows: 3, placeholder: "none" });
const FIELDS = [SYSTEM, ...FIRST, ...SAMPLING, ...TOOL_FIELDS, ...SHAPE];
export const NAMES = ["model", ...FIELDS.map(({ name }) => name)];
const NUMBERS = ["max_tokens", ...SAMPLING.map(({ name }) => name)];

/** Returns what is wrong with a text that must be JSON, or "". */
function jsonFault(text, isRight, wanted) {
  try {
    return !text || isRight(JSON.parse(text)) ? "" : `This must be ${wanted}.`;
  } catch (error) {
    return `This is not JSON: ${error.message}.`;
  }
}
const FAULTS = {
  tools: (text) => jsonFault(text, Array.isArray, "a list: [ … ]"),
  schema: (text) => jsonFault(text, (value) => typeof value === "object" && value !== null && !Array.isArray(value), "an object: { … }"),
};

/** Returns the settings that new conversations begin with. */
export function defaults() {
  try {
    const stored = JSON.parse(remembered("local", STORE) ?? "{}");
    return Object.fromEntries(Object.entries(stored).filter(([, value]) => typeof value === "string" && value));
  } catch {
    return {}; // not ours
  }
}

/** Returns the fields of a request's body. */
export function bodyOf(settings) {
  const { model, effort, tools, tool_choice, schema, stop } = settings;
  const stops = (stop ?? "").split("\n").filter(Boolean);
  const hasTools = tools && !FAULTS.tools(tools);
  return {
    ...(model && { model }),
    ...(effort && { reasoning_effort: effort }),
    ...Object.fromEntries(NUMBERS.filter((name) => settings[name]).map((name) => [name, Number(settings[name])])),
    ...(hasTools && { tools: JSON.parse(tools), ...(tool_choice && { tool_choice }) }),
    ...(schema && !FAULTS.schema(schema) && { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } } }),
    ...(stops.length && { stop: stops }),
  };
}

export class Settings {
  /** `current()` returns the settings of the conversation that is shown, `onChange` gets new ones. */
  constructor({ current, onChange }) {
    Object.assign(this, { current, onChange });
    const built = ({ label, build }) => h("label", {}, label, build());
    const fault = (name) => h("p", { class: "error", id: `${name}-error`, role: "alert" });
    const toolsNote = h("p", { class: "note", id: "tools-note" }, "Calls are not executed: each call is shown, and you paste its result.");
    const details = (title, ...children) => h("details", {}, h("summary", {}, title), ...children);
    this.always = h("input", { type: "checkbox", name: "always" });
    this.form = h(
      "form",
      { method: "dialog" },
      h("h2", { id: "settings-title" }, "Settings of this conversation"),
      built(SYSTEM),
      h("div", { class: "row" }, ...FIRST.map(built)),
      details("Sampling", h("div", { class: "row" }, ...SAMPLING.map(built))),
      details("Tools", built(TOOL_FIELDS[0]), toolsNote, fault("tools"), built(TOOL_FIELDS[1])),
      details("Form of the answer", built(SHAPE[0]), fault("schema"), built(SHAPE[1])),
      h("label", { class: "check" }, this.always, "New conversations begin with these settings"),
      h("button", { class: "primary", value: "done" }, "Done"),
    );
    this.dialog = h("dialog", { id: "settings", closedby: "any", "aria-labelledby": "settings-title" }, this.form);
    document.body.append(this.dialog);
    this.form.onsubmit = (event) => this.submit(event);
    this.dialog.onclose = () => this.close();
  }

  open() {
    const settings = this.current();
    for (const { name } of FIELDS) this.form.elements[name].value = settings[name] ?? "";
    this.always.checked = false;
    for (const one of this.form.querySelectorAll("details"))
      one.open = [...one.querySelectorAll("[name]")].some(({ value }) => value);
    for (const name of Object.keys(FAULTS)) $(`${name}-error`).textContent = "";
    this.dialog.showModal();
  }

  read() {
    const values = FIELDS.map(({ name }) => [name, this.form.elements[name].value.trim()]);
    return Object.fromEntries(values.filter(([, value]) => value));
  }

  submit(event) {
    const given = this.read();
    for (const [name, fault] of Object.entries(FAULTS)) {
      const text = fault(given[name] ?? "");
      $(`${name}-error`).textContent = text;
      if (!text || event.defaultPrevented) continue;
      event.preventDefault();
      this.form.elements[name].closest("details").open = true;
      this.form.elements[name].focus();
    }
  }

  close() {
    const given = this.read();
    for (const [name, fault] of Object.entries(FAULTS)) if (fault(given[name] ?? "")) delete given[name];
    const { model } = this.current();
    if (this.always.checked) remember("local", STORE, JSON.stringify(given));
    this.onChange({ ...(model && { model }), ...given });
  }
}
