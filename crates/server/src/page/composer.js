// The field to write in: it grows with its text, takes files, and changes a message that was sent.

import { Attachments } from "./attachments.js";

const $ = (id) => document.getElementById(id);

/** `send(text, files, editing)` is asked to send; it answers whether it did. `stop` ends a running answer, if one runs. */
export class Composer {
  constructor({ send, stop }) {
    this.sendTo = send;
    this.field = $("message");
    /** The message that is being changed, if any. */
    this.editing = null;
    this.attachments = new Attachments($("files"), (text) => this.problem(text));
    this.field.addEventListener("input", () => this.grow());
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    $("cancel-edit").addEventListener("click", () => this.clear());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (!stop() && this.editing) this.clear();
    });
    this.takeFiles();
  }

  takeFiles() {
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", async () => {
      await this.attach([...$("file").files]);
      $("file").value = "";
    });
    this.field.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (files.length === 0) return;
      event.preventDefault();
      this.attach(files);
    });
    const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) document.body.classList.remove("dropping");
    });
    document.addEventListener("drop", (event) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      document.body.classList.remove("dropping");
      this.attach([...event.dataTransfer.files]);
    });
  }

  attach(files) {
    this.problem("");
    return this.attachments.add(files);
  }

  problem(text) {
    $("field-problem").textContent = text;
    $("field-problem").hidden = text === "";
  }

  send() {
    const text = this.field.value;
    if (text.trim() === "" && this.attachments.files.length === 0) return;
    if (this.sendTo(text, this.attachments.files, this.editing)) this.clear();
  }

  edit(message) {
    this.editing = message;
    $("editing").hidden = false;
    this.field.value = message.content;
    this.attachments.set(message.files ?? []);
    this.grow();
    this.field.focus();
  }

  clear() {
    this.editing = null;
    $("editing").hidden = true;
    this.field.value = "";
    this.attachments.set([]);
    this.problem("");
    this.grow();
  }

  focus() {
    this.field.focus({ preventScroll: true });
  }

  grow() {
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, window.innerHeight * 0.4)}px`;
  }
}
