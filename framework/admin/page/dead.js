// Dead letters: which topics have some, the letters of one, and what may be done with them.
import { confirmed, get, h, once, post, say } from "./parts.js";

let place, words, topics, letters, tools, one;
let name = "";
let chosen = new Set();
let found = [];
let looks = 0;

export const dead = {
  begin(section, given) {
    place = section;
    words = given;
    topics = h("div", { class: "grid" });
    letters = h("div", { class: "grid" }, h("p", { class: "none" }, "Choose a topic to look at its letters."));
    one = h("div", { class: "letter", hidden: true });
    tools = h("form", { class: "tools", hidden: true, onsubmit: (event) => { event.preventDefault(); look(); } });
    place.append(h("div", { class: "dead" }, h("div", {}, topics), h("div", {}, tools, letters, one)));
    drawTools();
  },
  open() { count(); },
  look(handler) { choose(handler); },
};

async function count() {
  try {
    const all = await get("/api/dead");
    const rows = all.length > 100 ? all.filter((row) => row.letters || row.handler === name) : all;
    const lines = rows.map((row) => {
      const key = row.handler || row.dead_topic;
      return h("tr", { class: "row", tabindex: 0, "aria-selected": String(key === name), onclick: () => choose(key), onkeydown: (event) => event.key === "Enter" && choose(key) },
        h("td", { class: "name", title: row.dead_topic }, key), h("td", { class: `right ${row.letters ? "bad" : "zero"}` }, words.count(row.letters)));
    });
    topics.replaceChildren(rows.length
      ? h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, h("span", {}, "Handler or topic")), h("th", { class: "right" }, h("span", {}, "Letters")))), h("tbody", {}, ...lines))
      : h("p", { class: "none" }, "There is no dead letter."));
  } catch (error) {
    topics.replaceChildren(h("p", { class: "none" }, error.message));
  }
}

function choose(key) {
  name = key;
  chosen = new Set();
  one.hidden = true;
  tools.hidden = false;
  drawTools();
  count();
  look();
}

function drawTools() {
  const field = (id, label, more = {}) => h("input", { name: id, placeholder: label, "aria-label": label, ...more });
  tools.replaceChildren(
    field("reason", "Reason contains"), field("since", "Since: 2h, 2026-05-01"), field("before", "Before"), field("id", "Id"),
    h("label", {}, "at most", field("limit", "Limit", { type: "number", min: 1, max: 1000, value: 50 })),
    h("button", { class: "first" }, "Look"),
    h("span", { id: "letter-actions", class: "tools" }),
  );
  drawActions();
}

function drawActions() {
  const holds = tools.querySelector("#letter-actions");
  const many = chosen.size ? `${chosen.size} chosen` : `all that fit`;
  const off = { type: "button", disabled: words.readOnly() || !found.length };
  const to = h("input", { name: "to", placeholder: "Replay to (as it was)", "aria-label": "Replay to another topic" });
  to.value = holds.querySelector("[name=to]")?.value || "";
  const all = h("input", { type: "checkbox", name: "all_channels" });
  all.checked = holds.querySelector("[name=all_channels]")?.checked || false;
  holds.replaceChildren(
    h("button", { ...off, onclick: once(replay) }, `Replay ${many}`), to, h("label", {}, all, "all channels"),
    h("button", { ...off, class: "danger", onclick: once(purge) }, `Purge ${many}`),
  );
}

// What the fields choose; the limit is for looking only.
function selection() {
  const given = Object.fromEntries([...new FormData(tools)].filter(([key, value]) => value && ["reason", "since", "before", "id"].includes(key)));
  return given;
}

function meant() {
  const { id, ...given } = selection();
  return { name, ...given, ...(chosen.size ? { ids: [...chosen] } : id ? { ids: id.split(",") } : {}) };
}

// Again by itself while another look or change is under way, for as long as no other letters are asked for.
async function look(tries = 30) {
  const mine = ++looks;
  if (tries === 30) letters.replaceChildren(h("p", { class: "none" }, "Looking …"));
  try {
    const query = new URLSearchParams({ name, limit: tools.querySelector("[name=limit]").value || 50, ...selection() });
    const answer = await get(`/api/dead/letters?${query}`);
    if (mine !== looks) return;
    found = answer.letters;
    chosen = new Set([...chosen].filter((id) => found.some((letter) => letter.id === id)));
    if (answer.cut_short) say(answer.cut_short, true);
    drawLetters();
  } catch (error) {
    if (mine !== looks) return;
    found = [];
    letters.replaceChildren(h("p", { class: "none bad" }, error.message));
    if (error.status === 409 && tries) setTimeout(() => { if (mine === looks) look(tries - 1); }, 1000);
  }
  drawActions();
}

function drawLetters() {
  if (!found.length) {
    letters.replaceChildren(h("p", { class: "none" }, "No letter fits."));
    return;
  }
  const every = h("input", { type: "checkbox", "aria-label": "All", checked: chosen.size === found.length, onchange: () => {
    chosen = new Set(every.checked ? found.map((letter) => letter.id) : []);
    drawLetters();
    drawActions();
  } });
  const heads = [every, "Died", "Attempts", "Reason", "Size", "Message"].map((head, index) =>
    h("th", { class: `${index === 2 || index === 4 ? "right" : ""} ${index === 5 || index === 4 ? "middle" : ""}` }, h("span", {}, head)));
  letters.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...found.map(line))));
}

function line(letter) {
  const box = h("input", { type: "checkbox", "aria-label": `Choose ${letter.id}`, checked: chosen.has(letter.id), onclick: (event) => event.stopPropagation(), onchange: () => {
    if (box.checked) chosen.add(letter.id);
    else chosen.delete(letter.id);
    drawActions();
  } });
  const show = () => open(letter);
  return h("tr", { class: "row", tabindex: 0, onclick: show, onkeydown: (event) => event.key === "Enter" && show() },
    h("td", {}, box), h("td", {}, letter.dead ? letter.dead.replace("T", " ").replace(/\.\d+/, "") : "?"), h("td", { class: "right" }, String(letter.attempts || "?")),
    h("td", { class: "long", title: letter.reason }, letter.reason), h("td", { class: "right middle" }, `${words.count(letter.size)} B`), h("td", { class: "mono middle" }, letter.id));
}

// A body is fetched when it is asked for, and shown as text.
function open(letter) {
  const body = h("div", {}, h("button", { onclick: async () => {
    try {
      const query = new URLSearchParams({ name, id: letter.id, bodies: "true", limit: 1 });
      const [full] = (await get(`/api/dead/letters?${query}`)).letters;
      if (!full) throw new Error("it is not there any more");
      body.replaceChildren(h("h3", {}, full.cut ? "Body (its beginning)" : "body" in full ? "Body" : "Body (base64)"), h("pre", {}, full.body ?? full.body_base64));
    } catch (error) {
      say(error.message, true);
    }
  } }, "Show the body"));
  one.hidden = false;
  one.replaceChildren(
    h("button", { class: "plain", onclick: () => { one.hidden = true; }, "aria-label": "Close" }, "✕"),
    h("b", { class: "mono" }, letter.id), ` on ${letter.node || "?"}, published ${letter.published || "?"}`,
    h("h3", {}, "Reason"), h("pre", {}, letter.reason),
    ...(letter.traceback ? [h("h3", {}, "Traceback"), h("pre", {}, letter.traceback)] : []),
    ...(letter.headers ? [h("h3", {}, "Headers"), h("pre", {}, Object.entries(letter.headers).map(([key, value]) => `${key}: ${value}`).join("\n"))] : []),
    body,
  );
}

async function replay() {
  const to = tools.querySelector("[name=to]").value.trim();
  const asked = { ...meant(), ...(to ? { to } : {}), all_channels: tools.querySelector("[name=all_channels]").checked };
  await change("/api/dead/replay", asked, (done) => `replayed ${words.count(done.replayed)} to ${done.to.join(", ") || "nowhere"}${done.failed ? `; ${done.failed} failed: ${done.why}` : ""}`);
}

async function purge() {
  const which = chosen.size ? `${chosen.size} letters` : Object.keys(selection()).length ? "all letters that fit" : "all letters";
  if (!(await confirmed(`Purge ${which} of ${name}?`, "What is purged is gone for good.", "Purge"))) return;
  const asked = meant();
  await change("/api/dead/purge", Object.keys(asked).length === 1 ? { ...asked, all: true } : asked, (done) => `purged ${words.count(done.purged)}, kept ${words.count(done.kept)}`);
}

async function change(path, asked, told) {
  try {
    say(told(await post(path, asked)));
    chosen = new Set();
    one.hidden = true;
  } catch (error) {
    say(error.message, true);
  }
  count();
  look();
}
