// Text files that go with a message: chosen, dropped or pasted, shown as chips above the field.

import { el } from "./render.js";

const LARGEST = 1 << 20;
const MOST = 20;

/** A file as { name, text }; throws why it cannot be one. */
export async function readFile(file) {
  if (file.size > LARGEST) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MiB; the most is 1 MiB.`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not a text file (UTF-8).`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  return { name: file.name, text: text.replace(/\r\n?/g, "\n") };
}

export class Attachments {
  /** `chips` shows the files, `problem` is told what cannot be attached. */
  constructor(chips, problem) {
    this.files = [];
    this.chips = chips;
    this.problem = problem;
  }

  async add(files) {
    for (const file of files) {
      try {
        if (this.files.length >= MOST) throw new Error(`At most ${MOST} files go with a message.`);
        this.files.push(await readFile(file));
      } catch (error) {
        this.problem(error.message);
      }
    }
    this.show();
  }

  set(files) {
    this.files = [...files];
    this.show();
  }

  /** The files, which then belong to a message. */
  take() {
    const files = this.files;
    this.set([]);
    return files;
  }

  show() {
    this.chips.hidden = this.files.length === 0;
    this.chips.replaceChildren(...this.files.map((file) => {
      const remove = el("button", { type: "button", ariaLabel: `Remove ${file.name}`, title: "Remove" }, "×");
      remove.addEventListener("click", () => this.set(this.files.filter((other) => other !== file)));
      return el("li", { className: "chip" }, file.name, remove);
    }));
  }
}
