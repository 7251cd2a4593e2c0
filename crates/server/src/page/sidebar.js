// The list of chats: open, search, rename, save as a file, delete and take that back.

import * as chats from "./chats.js";
import { el } from "./render.js";

const UNDO_MS = 10_000;

const $ = (id) => document.getElementById(id);

/** `current` answers with the chat that is shown; `open`, `renamed` and `removed` are told what the reader did. */
export class Sidebar {
  constructor({ current, open, renamed, removed }) {
    Object.assign(this, { current, open, renamed, removed });
    this.undoing = 0;
    $("search").addEventListener("input", () => this.show());
    $("open-chats").addEventListener("click", () => this.toggle());
    $("chats-shade").addEventListener("click", () => this.toggle(false));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isDrawer()) this.toggle(false);
    });
    // Another tab of this browser changed a chat.
    window.addEventListener("storage", () => this.show());
    this.show();
  }

  /** On a narrow screen the list lies over the chat and is open only when it is wanted. */
  isDrawer() {
    return document.body.classList.contains("chats-open");
  }

  toggle(on = !this.isDrawer()) {
    document.body.classList.toggle("chats-open", on);
    $("open-chats").setAttribute("aria-expanded", String(on));
    if (on) $("search").focus({ preventScroll: true });
  }

  show() {
    const found = chats.search($("search").value);
    $("chat-list").replaceChildren(...found.map((entry) => this.entry(entry)));
    $("no-chats").hidden = found.length > 0;
    $("no-chats").textContent = $("search").value.trim() === "" ? "Chats are kept in this browser and listed here." : "No chat holds these words.";
  }

  entry({ id, title }) {
    const shown = this.current().id === id;
    const name = el("button", { type: "button", className: "title" }, title || "Chat");
    if (shown) name.setAttribute("aria-current", "true");
    name.addEventListener("click", () => {
      const chat = chats.load(id);
      if (chat) this.open(chat);
      this.toggle(false);
    });
    const item = el("li", { className: shown ? "shown" : "" }, name);
    if (shown) item.append(this.actions(id, item));
    return item;
  }

  actions(id, item) {
    const action = (label, title, act) => {
      const made = el("button", { type: "button", title }, label);
      made.addEventListener("click", act);
      return made;
    };
    return el("p", { className: "chat-actions" },
      action("Rename", "Give this chat another name", () => this.rename(id, item)),
      action("Save .md", "Save what is shown as Markdown", () => this.save(id, "md")),
      action("Save .json", "Save the whole chat with all its branches", () => this.save(id, "json")),
      action("Delete", "Delete this chat", () => this.remove(id)));
  }

  rename(id, item) {
    const chat = chats.load(id);
    if (!chat) return;
    const field = el("input", { value: chat.title, ariaLabel: "Name of the chat", maxLength: 120 });
    let done = false;
    const end = (keep) => {
      if (done) return;
      done = true;
      if (keep && field.value.trim() !== "") this.renamed(id, field.value.trim());
      this.show();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        end(false);
      }
    });
    field.addEventListener("blur", () => end(true));
    item.replaceChildren(field);
    field.focus();
    field.select();
  }

  save(id, format) {
    const chat = chats.load(id);
    if (!chat) return;
    const text = format === "md" ? chat.markdown() : `${JSON.stringify(chat, null, 2)}\n`;
    const name = chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").toLowerCase() || "chat";
    const url = URL.createObjectURL(new Blob([text], { type: format === "md" ? "text/markdown" : "application/json" }));
    el("a", { href: url, download: `${name}.${format}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  remove(id) {
    const title = chats.load(id)?.title || "Chat";
    const undo = chats.remove(id);
    this.removed(id);
    this.show();
    this.offerUndo(`“${title}” is deleted.`, () => {
      undo();
      const chat = chats.load(id);
      if (chat) this.open(chat);
      this.show();
    });
  }

  offerUndo(text, undo) {
    const toast = $("toast");
    const take = el("button", { type: "button" }, "Undo");
    const hide = () => { toast.hidden = true; };
    clearTimeout(this.undoing);
    this.undoing = setTimeout(hide, UNDO_MS);
    take.addEventListener("click", () => {
      hide();
      undo();
    });
    toast.replaceChildren(el("span", {}, text), take);
    toast.hidden = false;
  }
}
