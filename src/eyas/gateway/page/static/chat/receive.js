// One answer from the server: the body of a request, and the chunks that come back.
import { ServerError, call, events } from "../stream.js";
import { withFiles } from "./files.js";
import { bodyOf } from "./settings.js";

/** Returns the body for the messages so far. */
export function requestBody(messages, settings) {
  const said = messages.filter(({ role, content, calls }) => role !== "assistant" || content || calls?.length);
  const { system } = settings;
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...said.map(forServer)],
    stream: true,
    stream_options: { include_usage: true },
    ...bodyOf(settings),
  };
}

/** Converts a message for the server. Reasoning is sent back with calls only: the model needs it until their results. */
function forServer(message) {
  const { role, content, reasoning, calls, call: id } = message;
  if (role === "tool") return { role, content, tool_call_id: id ?? "" };
  if (!calls?.length) return { role, content: withFiles(message) };
  const tool_calls = calls.map((one) => ({
    id: one.id,
    type: "function",
    function: { name: one.name, arguments: one.arguments },
  }));
  return { role, content: content || null, ...(reasoning && { reasoning_content: reasoning }), tool_calls };
}

/** Receives an answer into a message. Throws ServerError; `onRequest` gets the request's id once it is known. */
export async function receive(message, body, { signal, onChange, onRequest }) {
  const response = await call("/v1/chat/completions", { body, signal });
  let isComplete = false;
  let request = null;
  const by = ["x-eyas-route", "x-eyas-backend"].map((name) => response.headers.get(name)).filter(Boolean);
  if (by.length) message.by = by;
  const onWaiting = (waiting) => {
    message.waiting = waiting;
    onChange();
  };
  for await (const data of events(response, onWaiting)) {
    if (data === "[DONE]") {
      isComplete = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw broken(chunk.error);
    if (chunk.id !== request) onRequest((request = chunk.id));
    apply(message, chunk);
    onChange();
  }
  if (!isComplete) throw new ServerError("The connection was lost.");
}

const broken = ({ message, type }) => new ServerError(message, type === "invalid_request_error" ? 400 : 503);

/** Adds a chunk to a message; `ended` is how the model says that it ended. */
function apply(message, { choices, usage, timings, metrics }) {
  const { delta = {}, finish_reason } = choices?.[0] ?? {};
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const { index, id, function: part } of delta.tool_calls ?? []) {
    const one = (message.calls[index] ??= { id: "", name: "", arguments: "" });
    one.id ||= id ?? "";
    one.name ||= part?.name ?? "";
    one.arguments += part?.arguments ?? "";
  }
  if (finish_reason) message.ended = finish_reason;
  if (timings) message.timings = timings;
  if (usage) message.usage = usage;
  if (metrics?.speculative_decoding) message.speculation = metrics.speculative_decoding;
}
