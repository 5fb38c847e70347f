// What all of the page uses: elements, questions to the worker, words for the reader.
const $ = (id) => document.getElementById(id);

// An element. Its children are elements or text; nothing here ever parses markup.
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") made[name] = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, typeof value === "string" ? plain(value) : value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined).map((one) => (typeof one === "string" ? plain(one) : one)));
  return made;
}

// Without what turns words around or is not seen, as the log has it: else a message could have the page say what it does not.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
export const plain = (words) => words.replace(/\r\n/g, "\n").replace(UNSEEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);

// Whether the reader has marked words in it, to copy them: what is drawn anew loses that.
export const marked = (place) => {
  const found = getSelection();
  return !found.isCollapsed && place.contains(found.anchorNode);
};

// The second click of a double one would undo the first, or ask twice.
export const once = (doing) => (event) => { if (event.detail < 2) doing(); };

let asking = null;

export async function ask(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("the worker does not answer");
  });
  if (answer.status === 401) {
    asking ??= askForToken(Boolean(token)).finally(() => { asking = null; });
    await asking;
    return ask(path, options);
  }
  if (!answer.ok) {
    const words = (await answer.json().catch(() => ({}))).error || `HTTP ${answer.status}`;
    throw Object.assign(new Error(words), { status: answer.status });
  }
  return answer;
}

export const get = async (path) => (await ask(path)).json();
export const post = async (path, body) =>
  (await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

let silence = 0;
export function say(words, bad = false) {
  const place = $("said");
  place.textContent = plain(words);
  place.className = bad ? "shown bad" : "shown";
  clearTimeout(silence);
  silence = setTimeout(() => { place.className = bad ? "bad" : ""; }, bad ? 9000 : 4000);
}

function dialog(...children) {
  const made = $("ask");
  made.replaceChildren(...children);
  if (!made.open) made.showModal();
  return made;
}

function askForToken(wrong) {
  return new Promise((resolve) => {
    const input = h("input", { type: "password", autocomplete: "off", "aria-label": "Token" });
    const form = h("form", { method: "dialog", onsubmit: () => { sessionStorage.setItem("token", input.value.trim()); } },
      h("h2", {}, "This worker asks for a token"),
      wrong ? h("p", { class: "bad", role: "alert" }, "That is not its token.") : null,
      h("p", {}, "It is in $WORKERS_ADMIN_TOKEN of the worker. This tab keeps it until it is closed."),
      input,
      h("div", { class: "tools" }, h("button", { class: "first" }, "Go on")));
    dialog(form).addEventListener("close", resolve, { once: true });
    input.focus();
  });
}

// Whether the reader agrees.
export function confirmed(title, words, verb) {
  return new Promise((resolve) => {
    const made = dialog(
      h("form", { method: "dialog" }, h("h2", {}, title), h("p", {}, words),
        h("div", { class: "tools" }, h("button", { value: "no", autofocus: true }, "Cancel"), h("button", { value: "yes", class: "danger" }, verb))));
    made.returnValue = "no";
    made.addEventListener("close", () => resolve(made.returnValue === "yes"), { once: true });
  });
}

export function showKeys() {
  const keys = [["/", "filter"], ["1 … 5", "the parts"], ["↓ ↑ or j k", "another row"], ["Enter", "open it"], ["p", "pause or resume the handler"], ["Esc", "close"]];
  dialog(
    h("form", { method: "dialog" }, h("h2", {}, "Keys"),
      h("table", {}, ...keys.map(([key, words]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, words)))),
      h("div", { class: "tools" }, h("button", { autofocus: true }, "Close"))));
}
