// The settings dialog: each change is kept at once, so closing it in any way loses nothing.

import * as store from "./settings.js";

export function bindSettings(settings, { changed, closed }) {
  const dialog = document.getElementById("settings");
  const form = dialog.querySelector("form");
  const problem = document.getElementById("settings-error");
  let keyBefore = settings.api_key;

  const fields = () => [...form.elements].filter(({ name }) => name in store.DEFAULTS);
  const fill = () => fields().forEach((field) => { field.value = settings[field.name]; });

  const check = () => {
    let wrong = "";
    try {
      store.parseTools(settings.tools);
    } catch (error) {
      wrong = error.message;
    }
    problem.textContent = wrong;
    problem.hidden = wrong === "";
  };

  form.addEventListener("input", ({ target }) => {
    if (!(target.name in store.DEFAULTS)) return;
    // A number the field cannot hold reads as empty; what was valid before stays until it is valid again.
    if (target.validity.valid) settings[target.name] = target.value;
    store.save(settings);
    check();
    changed();
  });

  document.getElementById("open-settings").addEventListener("click", () => {
    keyBefore = settings.api_key;
    fill();
    check();
    dialog.showModal();
  });

  document.getElementById("reset-settings").addEventListener("click", () => {
    const { model, api_key } = settings;
    Object.assign(settings, store.DEFAULTS, { model, api_key });
    store.save(settings);
    fill();
    check();
    changed();
  });

  // A click beside the dialog closes it, as people expect on a phone.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => closed({ keyChanged: settings.api_key !== keyBefore }));
}
