// The page of a worker: all that it shows and does goes by the API. Text from outside is set as text, never as markup.
import { ask, confirmed, get, h, marked, once, plain, post, say, showKeys } from "./parts.js";
import { Grid } from "./grid.js";
import { dead } from "./dead.js";

const $ = (id) => document.getElementById(id);
const state = { handlers: new Map(), processes: [], running: [], failures: [], nodes: [], readOnly: false, tab: "handlers", open: "", ahead: 0 };
const rates = [];

// Seconds since 1970 by the worker's clock, as all times here are: the browser's may be another.
const now = () => Date.now() / 1000 - state.ahead;

// -- words

export const seconds = (value) => {
  if (value === null || value === undefined) return "–";
  if (value < 1) return value && value < 0.0095 ? `${(value * 1000).toFixed(1)} ms` : `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60 ? `${minutes} m ${String(Math.floor(value % 60)).padStart(2, "0")} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} m`;
};
const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const rateOf = (row) => Object.entries(row.rate).reduce((sum, [outcome, rate]) => (outcome === "received" ? sum : sum + rate), 0);
const perSecond = (rate) => (rate >= 100 ? count(Math.round(rate)) : rate >= 0.05 ? rate.toFixed(1) : rate ? "<0.1" : "0");
const backlogOf = (row) => (row.backlog ? Object.values(row.backlog).reduce((sum, one) => sum + one, 0) : null);
const lostOf = (row) => row.counts.lease_lost + row.counts.lost;
const part = (row, of, which) => (row[of] ? row[of][which] : null);
// Calls of less are not told apart.
const took = (value) => (value !== null && value <= 0.005 ? "< 5 ms" : seconds(value));

function stateOf(row) {
  const pause = row.pause;
  if (!row.processes) return ["bad", "does not run"];
  if (!pause && row.kept?.paused) return ["warn", "paused at the broker"];
  if (!pause) return row.connected ? ["", "ok"] : ["bad", "no connection"];
  const some = pause.processes < row.processes ? ` (${pause.processes} of ${row.processes})` : "";
  if (pause.by !== "backoff") return ["warn", (pause.by === "drain" ? "drained" : "paused") + some];
  const left = Math.max(0, pause.until - now());
  return ["bad", (pause.trying ? "trying again" : `backing off ${seconds(left)}`) + some + `: ${pause.why}`];
}

function chip(row) {
  const [kind, words] = stateOf(row);
  return h("span", { class: `chip ${kind}`, title: words }, words);
}

const toned = (value, kind) => ({ text: count(value), class: value ? kind : "zero" });

// -- tables

const grids = {
  handlers: new Grid($("handlers"), {
    key: (row) => row.handler,
    find: (row) => row.handler + " " + stateOf(row)[1],
    open: (row) => openDetail(row.handler),
    empty: "No handler fits.",
    sort: ["Rate", true],
    columns: [
      { head: "Handler", class: "name", value: (row) => row.handler, cell: (row) => ({ text: row.handler, title: row.handler }) },
      { head: "State", value: (row) => stateOf(row).join(), cell: chip },
      { head: "Rate /s", sort: "Rate", right: true, value: rateOf, cell: (row) => ({ text: perSecond(rateOf(row)), class: rateOf(row) ? "" : "zero" }) },
      { head: "Running", right: true, value: (row) => row.running, cell: (row) => ({ text: `${count(row.running)} / ${count(row.concurrency)}`, class: row.running ? (row.running >= row.concurrency ? "warn" : "") : "zero" }) },
      { head: "Waiting", right: true, class: "wide", value: (row) => row.waiting, cell: (row) => toned(row.waiting, "") },
      { head: "In flight", right: true, class: "middle", value: (row) => row.in_flight, cell: (row) => toned(row.in_flight, "") },
      { head: "Backlog", right: true, value: backlogOf, cell: (row) => toned(backlogOf(row), "") },
      { head: "Age", right: true, class: "middle", value: (row) => row.oldest_age, cell: (row) => ({ text: row.oldest_age ? seconds(row.oldest_age) : "–", class: row.oldest_age > 60 ? "warn" : "zero" }) },
      { head: "p50", right: true, class: "wide", value: (row) => part(row, "took", "p50"), cell: (row) => ({ text: took(part(row, "took", "p50")), class: row.took ? "" : "zero" }) },
      { head: "p99", right: true, class: "middle", value: (row) => part(row, "took", "p99"), cell: (row) => ({ text: took(part(row, "took", "p99")), class: row.took ? "" : "zero" }) },
      { head: "Failures", right: true, class: "middle", value: (row) => row.failures, cell: (row) => toned(row.failures, "warn") },
      { head: "Dead", right: true, value: (row) => row.counts.dead, cell: (row) => toned(row.counts.dead, "bad") },
      { head: "Lost leases", right: true, class: "wide", value: lostOf, cell: (row) => toned(lostOf(row), "bad") },
    ],
  }),
  running: new Grid($("running"), {
    key: (row) => `${row.pid} ${row.handler} ${row.id} ${row.attempt}`,
    find: (row) => `${row.handler} ${row.id} ${row.where}`,
    open: (row) => openDetail(row.handler),
    empty: "No call runs at this moment.",
    sort: ["Since", true],
    columns: [
      { head: "Since", right: true, value: (row) => row.since, cell: (row) => ({ text: seconds(row.since) }) },
      { head: "Handler", class: "name", value: (row) => row.handler, cell: (row) => ({ text: row.handler }) },
      { head: "Message", class: "mono middle", value: (row) => row.id, cell: (row) => ({ text: row.messages > 1 ? `${row.id} and ${row.messages - 1} more` : row.id }) },
      { head: "Attempt", right: true, value: (row) => row.attempt, cell: (row) => ({ text: row.attempt, class: row.attempt > 1 ? "warn" : "" }) },
      { head: "Where", class: "long mono", value: (row) => row.where, cell: (row) => ({ text: short(row.where) || "?", title: row.where }) },
      { head: "Process", right: true, class: "wide", value: (row) => row.pid, cell: (row) => ({ text: row.pid }) },
    ],
  }),
  failures: new Grid($("failures"), {
    key: (row) => `${row.pid} ${row.handler} ${row.id} ${row.attempt} ${row.at}`,
    find: (row) => `${row.handler} ${row.id} ${row.error} ${row.where} ${row.became}`,
    open: (row) => openDetail(row.handler),
    empty: "Nothing has failed since the start.",
    sort: ["Ago", false],
    columns: [
      { head: "Ago", right: true, value: (row) => now() - row.at, cell: (row) => ({ text: seconds(Math.max(0, now() - row.at)), title: new Date(row.at * 1000).toISOString() }) },
      { head: "Handler", class: "name", value: (row) => row.handler, cell: (row) => ({ text: row.handler }) },
      { head: "Became", value: (row) => row.became, cell: (row) => ({ text: row.became, class: row.became === "dead" ? "bad" : "warn" }) },
      { head: "Attempt", right: true, class: "middle", value: (row) => row.attempt, cell: (row) => ({ text: row.attempt }) },
      { head: "Error", class: "long", value: (row) => row.error, cell: (row) => ({ text: row.error, title: row.error }) },
      { head: "Where", class: "mono wide", value: (row) => row.where, cell: (row) => ({ text: short(row.where), title: row.where }) },
      { head: "Message", class: "mono wide", value: (row) => row.id, cell: (row) => ({ text: row.id }) },
    ],
  }),
  nodes: new Grid($("nodes"), {
    key: (row) => row.node,
    find: (row) => row.node,
    empty: "There is no connection to a broker.",
    sort: ["Node", false],
    columns: [
      { head: "Node", class: "name mono", value: (row) => row.node, cell: (row) => ({ text: row.node }) },
      { head: "Connections", right: true, value: (row) => row.connections, cell: (row) => ({ text: count(row.connections) }) },
      { head: "RDY", right: true, value: (row) => row.granted, cell: (row) => ({ text: count(row.granted) }) },
      { head: "In flight", right: true, value: (row) => row.in_flight, cell: (row) => ({ text: count(row.in_flight) }) },
      { head: "Unsent bytes", right: true, class: "middle", value: (row) => row.unsent, cell: (row) => toned(row.unsent, "") },
    ],
  }),
};

grids.processes = new Grid($("processes"), {
  key: (row) => String(row.pid),
  find: (row) => `${row.pid} ${row.host} ${row.state}`,
  empty: "No process runs.",
  sort: ["Process", false],
  columns: [
    { head: "Process", class: "name mono", value: (row) => row.pid, cell: (row) => ({ text: `${row.pid} on ${row.host}` }) },
    { head: "State", value: (row) => row.state, cell: (row) => ({ text: row.state, class: row.state === "ready" ? "" : "warn" }) },
    { head: "Up", right: true, value: (row) => -row.started, cell: (row) => ({ text: seconds(Math.max(0, now() - row.started)) }) },
    { head: "CPU time", right: true, class: "middle", value: (row) => row.cpu, cell: (row) => ({ text: seconds(row.cpu) }) },
    { head: "Memory", right: true, value: (row) => row.memory, cell: (row) => ({ text: `${Math.round(row.memory / 1e6)} MB` }) },
    { head: "Hub blocked", right: true, value: (row) => row.blocked, cell: (row) => ({ text: row.blocked > 0.2 ? seconds(row.blocked) : "–", class: row.blocked > 0.2 ? "bad" : "zero" }) },
    { head: "What is wrong", class: "long", value: (row) => [...row.stuck, ...row.unready].join(), cell: (row) => ({ text: [...row.stuck, ...row.unready].join("; ") || "–", class: row.stuck.length ? "bad" : "" }) },
  ],
});

function short(where) {
  return where.replace(/^\S*\/(?=[^/]+\/[^/]+:\d+)/, "…/");
}

// -- one handler

function openDetail(name) {
  state.open = name;
  drawDetail(true);
  $("detail").querySelector("button")?.focus({ preventScroll: true });
}

function closeDetail() {
  state.open = "";
  $("detail").hidden = true;
  grids[state.tab]?.focus();
}

const act = (command) => post("/api/actions", command).then((found) => say(found.done)).catch((error) => say(error.message, true));

function numberForm(label, action, row) {
  const each = row.processes > 1 ? " in each process" : "";
  const input = h("input", { type: "number", min: 1, required: true, value: Math.round(row[action] / row.processes), "aria-label": label, disabled: state.readOnly });
  const send = (event) => {
    event.preventDefault();
    act({ action, handler: row.handler, value: Number(input.value) });
  };
  return h("form", { onsubmit: send }, h("span", {}, label + each), h("span", {}, input, " ", h("button", { disabled: state.readOnly }, "Set")));
}

function pairs(rows) {
  return h("dl", {}, ...rows.flatMap(([name, value, kind]) => [h("dt", {}, name), h("dd", { class: kind || "" }, value)]));
}

function drawDetail(anew) {
  const panel = $("detail");
  const row = state.handlers.get(state.open);
  panel.hidden = !row;
  if (!row) return;
  if (!anew && panel.contains(document.activeElement) && document.activeElement.tagName === "INPUT") {
    fillNumbers(panel, row);
    return;
  }
  if (!anew && marked(panel)) return;
  const held = [...panel.querySelectorAll("button")].indexOf(document.activeElement);
  const top = panel.scrollTop;
  const off = { disabled: state.readOnly };
  const mine = (rows) => rows.filter((one) => one.handler === row.handler);
  panel.replaceChildren(
    h("button", { class: "plain close", onclick: closeDetail, "aria-label": "Close" }, "✕"),
    h("h2", {}, row.handler),
    chip(row),
    h("h3", {}, "Change it"),
    h("div", { class: "tools" },
      row.pause && row.pause.by !== "backoff"
        ? h("button", { class: "first", onclick: once(() => act({ action: "resume", handler: row.handler })), ...off }, "Resume")
        : h("button", { class: "first", onclick: once(() => act({ action: "pause", handler: row.handler })), ...off }, "Pause"),
      h("button", { onclick: once(() => act({ action: "drain", handler: row.handler })), title: "Pause, and give back what has not been started", ...off }, "Drain"),
      h("button", { onclick: () => { choose("dead"); dead.look(row.handler); if (innerWidth < 860) closeDetail(); } }, "Dead letters"),
    ),
    numberForm("concurrency", "concurrency", row),
    numberForm("max_in_flight", "max_in_flight", row),
    h("div", { id: "numbers" }),
    h("h3", {}, "Runs now"),
    list(mine(state.running), (one) => [`${seconds(one.since)} · ${one.id} · attempt ${one.attempt}`, short(one.where)], "nothing"),
    h("h3", {}, "Failed last"),
    list(mine(state.failures), (one) => [one.error, `${seconds(Math.max(0, now() - one.at))} ago · ${one.became} · ${short(one.where)}`], "nothing"),
  );
  fillNumbers(panel, row);
  panel.scrollTop = top;
  if (held >= 0) panel.querySelectorAll("button")[held]?.focus({ preventScroll: true });
}

function fillNumbers(panel, row) {
  const counts = row.counts;
  panel.querySelector("#numbers")?.replaceChildren(
    h("h3", {}, "Now"),
    pairs([
      ["running", `${count(row.running)} of ${count(row.concurrency)}`],
      ["waiting for a slot", count(row.waiting)],
      ["in flight", `${count(row.in_flight)} of ${count(row.max_in_flight)}`],
      ["kept by the brokers", count(backlogOf(row))],
      ["the oldest waits at most", row.oldest_age ? seconds(row.oldest_age) : "–"],
      ["connections", `${count(row.connected)} of ${count(row.wanted)}`, row.connected < row.wanted ? "bad" : ""],
      ["processes", count(row.processes)],
    ]),
    h("h3", {}, "Time (the last seconds)"),
    pairs([
      ["calls, p50 / p99", `${took(part(row, "took", "p50"))} / ${took(part(row, "took", "p99"))}`],
      ["waited, p50 / p99", `${took(part(row, "waited_for", "p50"))} / ${took(part(row, "waited_for", "p99"))}`],
      ["no call has ended for", row.stalled > 1 ? seconds(row.stalled) : "–", row.stalled > row.timeout ? "bad" : ""],
      ["timeout", seconds(row.timeout)],
    ]),
    h("h3", {}, "Since the start"),
    pairs([
      ["received", count(counts.received)],
      ["finished", count(counts.finished)],
      ["requeued", count(counts.requeued), counts.requeued ? "warn" : ""],
      ["dead", count(counts.dead), counts.dead ? "bad" : ""],
      ["lost leases", count(lostOf(row)), lostOf(row) ? "bad" : ""],
    ]),
  );
}

function list(rows, words, none) {
  if (!rows.length) return h("p", { class: "zero" }, none);
  return h("ol", {}, ...rows.slice(0, 10).map((row) => h("li", {}, words(row)[0], h("small", { class: "mono" }, words(row)[1]))));
}

// -- all of it

function draw() {
  const rows = [...state.handlers.values()];
  const sum = (of) => rows.reduce((total, row) => total + (of(row) || 0), 0);
  const rate = sum(rateOf);
  rates.push(rate);
  rates.splice(0, rates.length - 120);
  const most = Math.max(...rates, 1);
  $("spark").firstElementChild.setAttribute("points", rates.map((one, index) => `${120 - rates.length + index},${27 - (26 * one) / most}`).join(" "));
  $("sums").replaceChildren(...[
    ["messages / s", perSecond(rate)], ["running", count(sum((row) => row.running))], ["in flight", count(sum((row) => row.in_flight))],
    ["backlog", rows.some((row) => row.backlog) ? count(sum(backlogOf)) : "–"], ["dead", count(sum((row) => row.counts.dead))],
    [state.processes.length === 1 ? "process" : "processes", `${count(state.processes.length)}`],
  ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  const wrong = state.processes.flatMap((one) => [...one.stuck, ...one.unready].map((words) => (state.processes.length > 1 ? `${one.pid}: ${words}` : words)));
  const shown = [...new Set(wrong)].slice(0, 5);
  if (shown.join() !== [...$("wrong").children].map((one) => one.textContent).join()) $("wrong").replaceChildren(...shown.map((words) => h("li", {}, words)));
  const held = rows.filter((row) => stateOf(row)[0] === "bad").length;
  badge("handlers", rows.length, held);
  badge("running", sum((row) => row.running));
  badge("failures", sum((row) => row.failures));
  badge("nodes", state.nodes.length);
  badge("dead", "");
  grids.handlers.show(rows);
  grids.running.show(state.running);
  grids.failures.show(state.failures);
  grids.nodes.show(state.nodes);
  grids.processes.show(state.processes);
  drawDetail(false);
}

function badge(tab, number, bad = 0) {
  const place = $(`tab-${tab}`).querySelector("b");
  place.textContent = bad ? `${count(number)} (${count(bad)} held back)` : number === "" ? "" : count(number);
  place.className = bad ? "bad" : "";
}

function choose(tab) {
  state.tab = tab;
  for (const one of document.querySelectorAll("[role=tab]")) {
    const mine = one.getAttribute("aria-controls") === tab;
    one.setAttribute("aria-selected", mine);
    one.tabIndex = mine ? 0 : -1;
    $(one.getAttribute("aria-controls")).hidden = !mine;
  }
  $("filter").parentElement.classList.toggle("unused", tab === "dead");
  grids[tab]?.refresh();
  if (tab === "nodes") grids.processes.refresh();
  if (tab === "dead") dead.open();
  if (location.hash !== `#${tab}`) history.replaceState(null, "", `#${tab}`);
}

// -- what the worker says

let reading = null;

async function listen() {
  let pause = 1000;
  for (;;) {
    if (document.hidden) await new Promise((wake) => document.addEventListener("visibilitychange", wake, { once: true }));
    try {
      state.readOnly = (await get("/api")).read_only; // again each time: it may be another worker
      reading = new AbortController();
      const answer = await ask("/api/events", { signal: reading.signal });
      state.handlers.clear();
      pause = 1000;
      await read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch (error) {
      if (!document.hidden) lost(error.message);
    }
    if (!document.hidden) await new Promise((wake) => setTimeout(wake, pause));
    pause = Math.min(5000, pause * 2);
  }
}

async function read(reader) {
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the worker has ended");
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    if (events.length) events.forEach(hear);
    if (events.length) draw();
  }
}

function hear(event) {
  const found = JSON.parse(event.slice(event.indexOf(":") + 1));
  for (const row of found.handlers) state.handlers.set(row.handler, row);
  for (const name of found.gone) state.handlers.delete(name);
  Object.assign(state, { processes: found.processes, running: found.running, failures: found.failures, nodes: found.nodes });
  if (found.at) state.ahead = Date.now() / 1000 - found.at;
  const states = new Set(found.processes.map((one) => one.state));
  $("live").textContent = (states.size === 1 ? [...states][0] : `${found.processes.filter((one) => one.state === "ready").length} of ${found.processes.length} ready`) + (state.readOnly ? ", read-only" : "");
  $("live").classList.toggle("lost", !states.has("ready"));
}

function lost(words) {
  $("live").textContent = `no answer: ${plain(words)}`;
  $("live").classList.add("lost");
}

// -- keys

const TABS = ["handlers", "running", "failures", "nodes", "dead"];
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape" && !$("ask").open) {
    if (typing) event.target.blur();
    else if (state.open) closeDetail();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || $("ask").open) return;
  if (event.key === "/") $("filter").focus();
  else if (event.key === "?") showKeys();
  else if (event.key >= "1" && event.key <= "5") choose(TABS[event.key - 1]);
  else if (event.key === "p" && !state.readOnly) event.repeat || togglePause();
  else if (!grids[state.tab]?.key(event.key)) return;
  event.preventDefault();
});

function togglePause() {
  const row = state.handlers.get(state.open || grids.handlers.selected);
  if (row) act({ action: row.pause && row.pause.by !== "backoff" ? "resume" : "pause", handler: row.handler });
}

document.addEventListener("visibilitychange", () => document.hidden && reading?.abort());
$("filter").addEventListener("input", (event) => Object.values(grids).forEach((grid) => grid.filter(event.target.value)));
$("help").addEventListener("click", showKeys);
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => choose(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    choose(TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length]);
    $(`tab-${state.tab}`).focus();
    event.preventDefault();
  });
}

dead.begin($("dead"), { seconds, count, confirmed, readOnly: () => state.readOnly });
choose(TABS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "handlers");
listen();
