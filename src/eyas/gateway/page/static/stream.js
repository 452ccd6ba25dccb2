// Requests to the server: the API key, errors with a status, server-sent events.
import { remember, remembered } from "./dom.js";

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status; // of HTTP; 0 if the connection failed, 503 if an answer was interrupted
  }
}

const KEY = "eyas.key";
let secret = null; // where the browser allows no store

/** Where this tab keeps its key, and how a user is told so. */
export const key = {
  note: "The key is kept until this tab is closed.",
  get: () => remembered("session", KEY) ?? secret,
  set: (text) => remember("session", KEY, (secret = text)),
};

/** Calls fetch with this tab's key. Throws ServerError unless it succeeds. */
export async function call(path, { method, body, signal } = {}) {
  const own = key.get();
  const headers = { "Content-Type": "application/json", ...(own && { Authorization: `Bearer ${own}` }) };
  method ??= body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError("The server cannot be reached.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  const message = answer?.error?.message ?? `The server answered with status ${response.status}.`;
  throw new ServerError(message, response.status);
}

const WAITING = ": eyas "; // a comment that says why an answer does not come yet

/**
 * Yields the data of each server-sent event of a response; events and characters may be split anywhere.
 * `onWaiting` gets what a router says of an answer that waits: { state, position, eta_s }.
 */
export async function* events(response, onWaiting = () => {}) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new ServerError("The connection was lost.");
      });
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        } else if (line.startsWith(WAITING)) onWaiting(JSON.parse(line.slice(WAITING.length)));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
