// One chat: a tree of messages, of which one path is shown. Changing a message or asking again adds a branch beside the old
// one, so nothing that was written is lost.
//
// A message is { id, parent, role, content, ... }; `leaf` names the last one of the path that is shown.

/** `crypto.randomUUID` is missing where a page comes by plain HTTP from another machine. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (word) => word.toString(36)).join("-");
}

export class Chat {
  constructor({ id, title = "", named = false, created = Date.now(), updated = created, messages = [], leaf = null } = {}) {
    this.id = id ?? newId();
    this.title = title;
    /** Whether the reader gave the title; otherwise it follows the first message. */
    this.named = named;
    this.created = created;
    this.updated = updated;
    this.messages = messages;
    this.leaf = leaf ?? messages.at(-1)?.id ?? null;
  }

  /** A chat as it was kept, or null if that is not one. */
  static from(kept) {
    const earlier = new Set([null]);
    const sound = (message) => {
      const follows = earlier.has(message?.parent);
      earlier.add(message?.id);
      return follows && [message.id, message.role, message.content].every((field) => typeof field === "string");
    };
    const chat = typeof kept?.id === "string" && Array.isArray(kept.messages) && kept.messages.every(sound);
    return chat ? new Chat(kept) : null;
  }

  /** A chat of messages that follow each other. */
  static ofMessages(list) {
    const chat = new Chat();
    list.forEach((message) => chat.add(message));
    return chat;
  }

  find(id) {
    return this.messages.find((message) => message.id === id) ?? null;
  }

  /** The messages that are shown, first to last. */
  path() {
    const path = [];
    for (let at = this.find(this.leaf); at; at = this.find(at.parent)) path.unshift(at);
    return path;
  }

  add(message, parent = this.leaf) {
    const added = { ...message, id: newId(), parent };
    this.messages.push(added);
    this.leaf = added.id;
    this.updated = Date.now();
    if (!this.named && this.title === "" && added.role === "user") this.title = titleOf(added);
    return added;
  }

  addUser(content, files = [], parent = this.leaf) {
    return this.add({ role: "user", content, ...(files.length > 0 ? { files } : {}) }, parent);
  }

  addToolResult(call, content) {
    return this.add({ role: "tool", content, call });
  }

  /** An answer to fill, after `parent`. */
  addAnswer(parent = this.leaf) {
    return this.add({ role: "assistant", content: "", reasoning: "", calls: [] }, parent);
  }

  /** Takes back a message that nothing follows. */
  drop(message) {
    this.messages = this.messages.filter(({ id }) => id !== message.id);
    if (this.leaf === message.id) this.leaf = message.parent;
  }

  /** The messages that stand in the same place, the message itself among them. */
  branches({ parent }) {
    return this.messages.filter((message) => message.parent === parent);
  }

  /** Shows another branch, to its newest end. */
  show(message) {
    this.leaf = this.lastOf(message);
  }

  lastOf(message) {
    let last = message;
    for (let next = last; next; next = this.messages.findLast(({ parent }) => parent === last.id)) last = next;
    return last.id;
  }

  /** Adds what a chunk brought to an answer; whether that was any text. */
  take(message, delta) {
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    message.reasoning += reasoning;
    message.content += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) {
      const call = (message.calls[part.index] ??= { id: "", name: "", arguments: "" });
      call.id = part.id ?? call.id;
      call.name += part.function?.name ?? "";
      call.arguments += part.function?.arguments ?? "";
    }
    return Boolean(reasoning || delta.content || delta.tool_calls?.length);
  }

  /** The messages of a request. An answer that is still empty is the one being asked for. */
  wire(system) {
    const full = ({ role, content, calls }) => role !== "assistant" || content !== "" || calls?.length > 0;
    const messages = this.path().filter(full).map(wireMessage);
    return system.trim() === "" ? messages : [{ role: "system", content: system }, ...messages];
  }

  /** Whether any of its text holds these words. */
  mentions(words) {
    const holds = (text) => text.toLowerCase().includes(words);
    return holds(this.title) || this.messages.some(({ content }) => holds(content));
  }

  /** The path that is shown, to be read elsewhere. */
  markdown() {
    const heads = { user: "You", assistant: "Model", tool: "Tool result" };
    const parts = this.path().map((message) => {
      const calls = (message.calls ?? []).map((call) => fenced(call.arguments, call.name));
      return [`## ${heads[message.role] ?? message.role}`, withFiles(message), ...calls].filter((part) => part !== "").join("\n\n");
    });
    return [`# ${this.title || "Chat"}`, ...parts].join("\n\n") + "\n";
  }
}

function titleOf({ content, files }) {
  const text = content.trim().replace(/\s+/g, " ") || files?.[0]?.name || "";
  return text.length > 60 ? `${text.slice(0, 59).trimEnd()}…` : text;
}

function wireMessage(message) {
  const { role, content, reasoning, calls, call } = message;
  if (role === "tool") return { role, content, tool_call_id: call };
  if (role !== "assistant") return { role, content: withFiles(message) };
  const wire = { role, content };
  if (reasoning) wire.reasoning_content = reasoning;
  if (calls?.length > 0) {
    wire.tool_calls = calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
  }
  return wire;
}

/** A message's files, each in a fence that nothing in it can close, and then its text. */
function withFiles({ content, files = [] }) {
  return [...files.map(({ name, text }) => `${name}:\n\n${fenced(text, /\.(\w+)$/.exec(name)?.[1] ?? "")}`), content]
    .filter((part) => part !== "").join("\n\n");
}

function fenced(text, label) {
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}${label}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}
