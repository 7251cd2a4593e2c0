// The chats of this browser: a list of their titles, and each chat by itself, so that a long one costs the others nothing.

import { Chat } from "./chat.js";

const LIST = "forerun.chats";
const ONE = "forerun.chat.";
/** Where the only chat of earlier versions lay. */
const EARLIER = "forerun.chat";
const OPEN = "forerun.open";

/** The browser keeps no more. */
export class StorageFull extends Error {
  constructor() {
    super("This browser has no space left for chats: delete some, or save them as files first. This chat lasts as long as the page.");
  }
}

function read(name, store = localStorage) {
  try {
    return JSON.parse(store.getItem(name) ?? "null");
  } catch {
    return null;
  }
}

/** Keeps a value. Private windows may refuse to keep anything at all: that is no news worth telling. */
function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch (error) {
    if (error.name === "QuotaExceededError") throw new StorageFull();
  }
}

/** { id, title, updated } of each chat, newest first. */
export function list() {
  const kept = read(LIST);
  const sound = (entry) => typeof entry?.id === "string" && typeof entry.title === "string" && Number.isFinite(entry.updated);
  return Array.isArray(kept) ? kept.filter(sound).sort((one, other) => other.updated - one.updated) : [];
}

export function load(id) {
  return Chat.from(read(ONE + id));
}

export function keep(chat) {
  write(ONE + chat.id, chat);
  write(LIST, [{ id: chat.id, title: chat.title, updated: chat.updated }, ...list().filter(({ id }) => id !== chat.id)]);
}

/** Deletes a chat, and answers with what brings it back. */
export function remove(id) {
  const chat = load(id);
  try {
    localStorage.removeItem(ONE + id);
  } catch {
    // Nothing is kept in such a window, so nothing is to be deleted.
  }
  write(LIST, list().filter((entry) => entry.id !== id));
  return () => { if (chat) keep(chat); };
}

/** The entries whose title or text holds all of this, in any case. */
export function search(text) {
  const words = text.trim().toLowerCase();
  return words === "" ? list() : list().filter(({ id, title }) => title.toLowerCase().includes(words) || load(id)?.mentions(words));
}

/** The chat this tab shows; another tab may show another. */
export function opened() {
  const id = read(OPEN, sessionStorage);
  return (typeof id === "string" ? load(id) : null) ?? new Chat();
}

export function noteOpened(chat) {
  try {
    sessionStorage.setItem(OPEN, JSON.stringify(chat.id));
  } catch {
    // A reload then begins with an empty chat.
  }
}

/** Takes over the one chat that earlier versions kept. */
export function takeOver() {
  const messages = read(EARLIER);
  if (!Array.isArray(messages)) return;
  const sound = messages.every((message) => typeof message?.role === "string" && typeof message.content === "string");
  if (sound && messages.length > 0) keep(Chat.ofMessages(messages.map(({ id, ...message }) => (message.role === "tool" ? { ...message, call: id } : message))));
  localStorage.removeItem(EARLIER);
}
