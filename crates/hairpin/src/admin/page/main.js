// The frame of the page: which view is shown, the state of the server, the token.

import { call, follow, token } from "./api.js";
import { views } from "./views.js";
import { test } from "./test.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

/** Makes an HTML element. Texts are never parsed as HTML. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Makes an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

const byId = (id) => document.getElementById(id);
const all = { ...views, test };

/** Shows a message for eight seconds. */
let silence;
export function say(text) {
  byId("message").textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => (byId("message").textContent = ""), 8000);
}

/** Asks the user to confirm an action that cannot be undone. */
export function confirm(title, text, action) {
  const dialog = byId("confirm-dialog");
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-ok").textContent = action;
  return new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok"), { once: true });
    dialog.showModal();
  });
}

// ---- History and events

export const history = { columns: [], rows: [], listeners: new Set() };

/** The values of a column. */
history.column = (name) => {
  const place = history.columns.indexOf(name);
  return history.rows.map((row) => row[place]);
};

/** The newest value of a column. */
history.last = (name) => history.rows.at(-1)?.[history.columns.indexOf(name)] ?? 0;

async function watch() {
  for (;;) {
    const control = new AbortController();
    restart = () => control.abort();
    try {
      const loaded = await call("GET", "/history");
      Object.assign(history, { columns: loaded.columns, rows: loaded.rows });
      await refreshState();
      history.listeners.forEach((listener) => listener());
      await follow((row) => {
        history.rows.push(row);
        if (history.rows.length > 1800) history.rows.shift();
        history.listeners.forEach((listener) => listener());
      }, control.signal);
    } catch (failure) {
      if (!control.signal.aborted) showState(null, failure.message);
    }
    await new Promise((resolve) => setTimeout(resolve, control.signal.aborted ? 0 : 3000));
  }
}
let restart = () => {};

async function refreshState() {
  showState(await call("GET", "/status"));
}
// If the server is unreachable, the loop above shows it.
setInterval(() => document.hidden || refreshState().catch(() => {}), 10_000);

function showState(status, problem) {
  const state = byId("state");
  if (!status) {
    state.className = "bad";
    state.textContent = problem;
    return;
  }
  state.className = status.healthy && status.state === "serving" ? "good" : "warn";
  const what = status.healthy ? status.state : status.health;
  state.textContent = `${what}, version ${status.version}, up ${duration(status.uptime_s)}`;
}

// ---- Numbers

const UNITS = ["", "k", "M", "G", "T"];

export function amount(value) {
  let number = value;
  let unit = 0;
  while (Math.abs(number) >= 1000 && unit < UNITS.length - 1) {
    number /= 1000;
    unit += 1;
  }
  const digits = number >= 100 || Number.isInteger(number) ? 0 : number >= 10 ? 1 : 2;
  return `${Number(number.toFixed(digits))}${unit ? ` ${UNITS[unit]}` : ""}`;
}

export const bits = (bytes) => `${amount(bytes * 8)}${bytes * 8 < 1000 ? " " : ""}bit/s`;
export const percent = (share) => `${Math.round(share * 100)} %`;

export function bytes(count) {
  const text = amount(count);
  return `${text}${/[a-zA-Z]$/.test(text) ? "" : " "}B`;
}

export function duration(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => seconds >= length);
  if (first < 0) return "0 s";
  let rest = seconds;
  return parts
    .slice(first, first + 2)
    .map(([length, unit]) => {
      const count = Math.floor(rest / length);
      rest -= count * length;
      return count ? `${count} ${unit}` : "";
    })
    .join(" ")
    .trim();
}

// ---- Views and token

let leave = () => {};

function show() {
  const name = all[location.hash.slice(1)] ? location.hash.slice(1) : "now";
  document.querySelectorAll("nav a").forEach((link) => {
    const isShown = link.getAttribute("href") === `#${name}`;
    if (isShown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  leave();
  const view = all[name];
  document.title = `${view.title} – hairpin`;
  const root = byId("view");
  root.replaceChildren(element("h1", {}, view.title));
  leave = view.show(root) ?? (() => {});
}

function showToken() {
  byId("token").textContent = token.get() ? "Forget token" : "Enter token";
}

byId("token").addEventListener("click", () => {
  if (token.get()) {
    token.set("");
    showToken();
    restart();
    show();
    return;
  }
  byId("token-value").value = "";
  byId("token-dialog").returnValue = "";
  byId("token-dialog").showModal();
});

// The Return key submits the form with its first button, which is Cancel.
byId("token-value").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  byId("token-dialog").close("ok");
});

byId("token-dialog").addEventListener("close", () => {
  if (byId("token-dialog").returnValue !== "ok") return;
  token.set(byId("token-value").value.trim());
  byId("token-value").value = "";
  showToken();
  restart();
  show();
});

addEventListener("hashchange", () => {
  show();
  byId("view").focus({ preventScroll: true });
  scrollTo(0, 0);
});
showToken();
show();
watch();
