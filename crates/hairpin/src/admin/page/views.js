// All views except the test of the server. Each fills a root element and returns a function that ends the view.

import { call } from "./api.js";
import { Chart } from "./chart.js";
import { amount, bits, bytes, confirm, duration, element, history, percent, say } from "./main.js";

const SECOND = 1000;

/** Calls `refresh` now and then periodically, while the page is visible. */
function every(seconds, refresh) {
  refresh();
  const timer = setInterval(() => document.hidden || refresh(), seconds * SECOND);
  return () => clearInterval(timer);
}

/** A table. A cell is a text, an element, or both with a class as `[content, class]`. */
function table(caption, columns, rows, empty) {
  const cell = (content, place) => {
    const [value, kind] = Array.isArray(content) ? content : [content, columns[place][1]];
    const attributes = { class: kind, "data-label": columns[place][0] };
    return place === 0 ? element("th", { ...attributes, scope: "row" }, value) : element("td", attributes, value);
  };
  const body = rows.length
    ? rows.map((row) => element("tr", {}, ...row.map(cell)))
    : [element("tr", {}, element("td", { colspan: columns.length, class: "dim" }, empty))];
  const head = columns.map(([name, kind]) => element("th", { scope: "col", class: kind }, name));
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: "stack" }, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
  );
}

const mono = (text) => element("span", { class: "mono" }, text);

/** Shows the error of a request instead of its result. */
function failed(root, failure) {
  root.replaceChildren(element("p", { class: "card bad", role: "alert" }, failure.message));
}

// ---- Now

const OVERLOAD = ["accepts all", "refuses some new requests", "refuses all new requests"];

const now = {
  title: "Now",
  show(root) {
    const tiles = element("ul", { class: "tiles" });
    const charts = element("div", { class: "charts" });
    const offload = element("div");
    root.append(tiles, charts, offload);
    const drawn = [
      [new Chart("Relayed data", ["to peers", "to clients"], bits), ["bytes_to_peers_per_s", "bytes_to_clients_per_s"]],
      [new Chart("Relayed packets per second", ["to peers", "to clients", "by the kernel"], amount), ["packets_to_peers_per_s", "packets_to_clients_per_s", "packets_by_kernel_per_s"]],
      [new Chart("Allocations", ["allocations"], amount), ["allocations"]],
      [new Chart("Failed requests and dropped packets per second", ["failed", "dropped"], amount), ["failures_per_s", "dropped_per_s"]],
      [new Chart("SIP", ["transactions", "bindings", "calls"], amount), ["sip_transactions", "sip_bindings", "sip_calls"]],
    ];
    let processors;
    charts.append(...drawn.map(([chart]) => chart.root));
    const tile = (label, value, kind) => element("li", { class: "card" }, element("span", { class: "label" }, label), element("span", { class: `value ${kind ?? ""}` }, value));
    const draw = () => {
      const last = history.last;
      const names = history.columns.filter((name) => name.startsWith("cpu_"));
      const used = names.map(last);
      const overload = last("sip_overload_state");
      const packets = last("packets_to_peers_per_s") + last("packets_to_clients_per_s");
      tiles.replaceChildren(
        tile("Allocations", amount(last("allocations"))),
        tile("SIP calls", amount(last("sip_calls"))),
        tile("Connections", amount(last("connections"))),
        tile("Packets per second", amount(packets)),
        tile("Data", bits(last("bytes_to_peers_per_s") + last("bytes_to_clients_per_s"))),
        tile("By the kernel", packets ? percent(last("packets_by_kernel_per_s") / packets) : "–"),
        tile("Busiest worker", percent(Math.max(0, ...used)), Math.max(0, ...used) > 0.9 ? "bad" : ""),
        tile("Failed requests per second", amount(last("failures_per_s")), last("failures_per_s") > 0 ? "warn" : ""),
        tile("Dropped packets per second", amount(last("dropped_per_s"))),
        tile("Memory", bytes(last("memory_bytes"))),
        tile("New clients", last("draining") ? "refused: draining" : "admitted", last("draining") ? "warn" : "good"),
        tile("SIP overload control", OVERLOAD[overload] ?? String(overload), overload ? "bad" : "good"),
      );
      const times = history.column("time_unix_s");
      if (!processors && names.length) {
        const labels = names.map((name) => `worker ${name.slice("cpu_worker_".length)}`);
        processors = [new Chart("Processor time of workers", labels, percent, 1), names];
        charts.append(processors[0].root);
      }
      [...drawn, ...(processors ? [processors] : [])].forEach(([chart, columns]) => chart.draw(times, columns.map(history.column)));
    };
    draw();
    history.listeners.add(draw);
    const stop = every(10, async () => {
      try {
        const status = await call("GET", "/status");
        const rows = status.offload.map((line) => [line]);
        const none = "All packets are relayed in user space: offload.mode is \"off\", or no interface is in use yet.";
        const listeners = Object.entries(status.listeners).flatMap(([kind, list]) => list.map((address) => [kind.replaceAll("_", " "), mono(address)]));
        offload.replaceChildren(
          element("p"),
          table("In-kernel relay, by interface", [["Interface"]], rows, none),
          table("Listeners", [["Kind"], ["Address"]], listeners, "None."),
        );
      } catch (failure) {
        failed(offload, failure);
      }
    });
    return () => {
      history.listeners.delete(draw);
      stop();
    };
  },
};

// ---- Sessions

const sessions = {
  title: "Sessions",
  show(root) {
    const user = element("input", { id: "user", name: "user", autocomplete: "off", spellcheck: "false" });
    const peer = element("input", { id: "peer", name: "peer", autocomplete: "off", spellcheck: "false", placeholder: "192.0.2.1" });
    const result = element("div", { "aria-live": "polite" });
    let after;
    const find = async () => {
      try {
        const page = await call("GET", "/sessions", { user: user.value.trim(), peer: peer.value.trim(), after });
        const rows = page.sessions.map((session) => row(session, find));
        const columns = [["User"], ["Client"], ["Relayed address"], ["Peers"], ["To peers", "number"], ["To client", "number"], ["Age", "number"], [""]];
        const more = page.next ? element("button", { type: "button", class: "quiet", onclick: () => ((after = page.next), find()) }, "Next page") : undefined;
        const first = after ? element("button", { type: "button", class: "quiet", onclick: () => ((after = undefined), find()) }, "First page") : undefined;
        result.replaceChildren(table("Sessions", columns, rows, "No session matches."), element("p", {}, ...[first, " ", more].filter(Boolean)));
      } catch (failure) {
        failed(result, failure);
      }
    };
    const search = (event) => {
      event.preventDefault();
      after = undefined;
      find();
    };
    root.append(
      element("p", { class: "dim" }, "Allocations of clients. Packets that the kernel relays are counted when the client refreshes."),
      element(
        "form",
        { class: "search", role: "search", onsubmit: search },
        element("div", {}, element("label", { for: "user" }, "User name contains"), user),
        element("div", {}, element("label", { for: "peer" }, "IP address of client or peer"), peer),
        element("button", {}, "Search"),
      ),
      result,
    );
    return every(5, () => result.contains(document.activeElement) || find());
  },
};

function row(session, find) {
  const peers = [...new Set([...session.channels, ...session.permissions])];
  const more = Math.max(peers.length - 4, 0) + session.peers_omitted;
  const end = async () => {
    const text = `${session.user} at ${session.client}. Its relayed addresses are closed at once.`;
    if (!(await confirm("End this session?", text, "End session"))) return;
    try {
      await call("DELETE", `/sessions/${session.id}`);
      say(`Session ${session.id} has ended.`);
    } catch (failure) {
      say(failure.message);
    }
    find();
  };
  const about = element("span", {}, mono(session.user), element("br"), element("span", { class: "dim" }, session.realm));
  const client = element("span", {}, mono(session.client), element("br"), element("span", { class: "dim" }, session.transport));
  return [
    about,
    client,
    mono(session.relayed.join(" ")),
    mono(peers.slice(0, 4).join(" ") + (more > 0 ? ` and ${more} more` : "")),
    bytes(session.to_peers.bytes),
    bytes(session.to_client.bytes),
    duration(session.age_s),
    element("button", { type: "button", class: "danger small", "aria-label": `End the session of ${session.user} at ${session.client}`, onclick: end }, "End"),
  ];
}

// ---- SIP

/** Pages without an entry that a search reads before it asks the user. */
const EMPTY_PAGES = 50;

/** Reads pages of a list until one has an entry. */
async function page(path, name, parameters) {
  let found = await call("GET", path, parameters);
  for (let pages = 0; !found[name].length && found.next && pages < EMPTY_PAGES; pages += 1) {
    found = await call("GET", path, { ...parameters, after: found.next });
  }
  return found;
}

/** A list of bindings or calls with its own position. `rows` makes the rows of a page. */
class SipList {
  constructor(path, name, caption, columns, empty, rows) {
    Object.assign(this, { path, name, caption, columns, empty, rows });
    this.root = element("div", { "aria-live": "polite" });
  }

  async show(search, after) {
    this.search = search;
    this.after = after;
    try {
      const found = await page(this.path, this.name, { search, after });
      const button = (text, place) => element("button", { type: "button", class: "quiet", onclick: () => this.show(search, place) }, text);
      const more = found.next ? button("Next page", found.next) : undefined;
      const first = after ? button("First page", undefined) : undefined;
      const rows = found[this.name].map((entry) => this.rows(entry, () => this.show(this.search, this.after)));
      this.root.replaceChildren(table(this.caption, this.columns, rows, this.empty), element("p", {}, ...[first, " ", more].filter(Boolean)));
    } catch (failure) {
      failed(this.root, failure);
    }
  }

  refresh(search) {
    const isUsed = this.root.contains(document.activeElement);
    return isUsed ? undefined : this.show(search, search === this.search ? this.after : undefined);
  }
}

function bindingRow(binding, find) {
  const remove = async () => {
    const text = `${binding.aor} at ${binding.contact}. A phone that still runs registers again when it refreshes.`;
    if (!(await confirm("Remove this binding?", text, "Remove binding"))) return;
    try {
      await call("DELETE", "/sip/bindings", { aor: binding.aor, contact: binding.contact });
      say(`The binding of ${binding.aor} is removed.`);
    } catch (failure) {
      say(failure.message);
    }
    find();
  };
  const source = binding.remote ? `${binding.transport} ${binding.remote}` : binding.path ?? "–";
  return [
    mono(binding.aor),
    mono(binding.contact),
    mono(source),
    binding.user_agent ?? "–",
    duration(binding.expires_s),
    element("button", { type: "button", class: "danger small", "aria-label": `Remove the binding of ${binding.aor} at ${binding.contact}`, onclick: remove }, "Remove"),
  ];
}

const callRow = (it) => [mono(it.from), mono(it.to), it.state, it.source ?? mono(it.source_address), it.target ?? `${it.tried} tried`, duration(Math.floor(it.lasted_ms / 1000)), mono(it.call_id)];

function trunkRow(trunk) {
  const up = trunk.addresses.filter((address) => address.state === "up" || address.state === "slow_start");
  const states = trunk.addresses.map((address) => element("div", {}, mono(address.uri), ` ${address.state.replace("_", " ")}${address.last_error ? `, last error ${address.last_error}` : ""}`));
  const badge = element("span", { class: `badge ${up.length ? "good" : "bad"}` }, up.length ? `${up.length} of ${trunk.addresses.length} up` : "down");
  return [
    trunk.name ?? "(unnamed)",
    element("span", {}, badge, ...states),
    trunk.registered === null ? "–" : trunk.registered ? "yes" : "no",
    amount(trunk.requests),
    amount(trunk.silent + trunk.rung_and_failed),
    amount(trunk.limited),
  ];
}

const sip = {
  title: "SIP",
  show(root) {
    const tiles = element("ul", { class: "tiles" });
    const trunkList = element("div");
    const search = element("input", { id: "search", autocomplete: "off", spellcheck: "false" });
    const bindings = new SipList("/sip/bindings", "bindings", "Bindings", [["Address of record"], ["Contact"], ["Source"], ["User agent"], ["Expires in", "number"], [""]], "No binding matches.", bindingRow);
    const calls = new SipList("/sip/calls", "calls", "Calls", [["From"], ["To"], ["State"], ["Source"], ["Target"], ["Time", "number"], ["Call-ID"]], "No call matches. Calls are listed if sip.call_log is true.", callRow);
    const find = (event) => {
      event?.preventDefault();
      bindings.show(search.value.trim());
      calls.show(search.value.trim());
    };
    root.append(
      tiles,
      element(
        "form",
        { class: "search", role: "search", onsubmit: find },
        element("div", {}, element("label", { for: "search" }, "Bindings and calls that contain"), search),
        element("button", {}, "Search"),
      ),
      bindings.root,
      calls.root,
      trunkList,
    );
    return every(5, async () => {
      bindings.refresh(bindings.search ?? "");
      calls.refresh(calls.search ?? "");
      try {
        const [status, trunks] = await Promise.all([call("GET", "/status"), call("GET", "/sip/trunks")]);
        const tile = (label, value) => element("li", { class: "card" }, element("span", { class: "label" }, label), element("span", { class: "value" }, amount(value)));
        tiles.replaceChildren(
          tile("Bindings", history.last("sip_bindings")),
          tile("Calls that count towards limits", status.sip.calls),
          tile("Transactions", status.sip.transactions),
          tile("Connections", status.sip.connections),
          tile("Banned sources", status.sip.banned_sources),
        );
        const columns = [["Trunk"], ["Addresses"], ["Registered"], ["Requests", "number"], ["Failed", "number"], ["Over limit", "number"]];
        trunkList.replaceChildren(table("Trunks", columns, trunks.trunks.map(trunkRow), "There is no trunk: see [[sip.trunk]] in docs/configuration.md."));
      } catch (failure) {
        failed(trunkList, failure);
      }
    });
  },
};

// ---- Failures

const failures = {
  title: "Failures",
  show(root) {
    const list = element("ul", { class: "cards" });
    const before = new Map();
    const begun = Date.now();
    root.append(element("p", { class: "dim" }, "Failed requests of clients since the server started, by reason. The most frequent reason is first."), list);
    return every(5, async () => {
      try {
        const found = (await call("GET", "/failures")).failures;
        const cards = found.map((failure) => {
          const key = `${failure.area}/${failure.reason}`;
          if (!before.has(key)) before.set(key, Date.now() - begun < SECOND ? failure.count : 0);
          const more = failure.count - before.get(key);
          const title = element("h2", {}, `${failure.area}: ${failure.reason.replaceAll("_", " ")}`, element("span", { class: "badge" }, amount(failure.count)));
          if (more > 0) title.append(element("span", { class: "badge warn" }, `${amount(more)} since this page was opened`));
          return element("li", { class: "card" }, title, element("p", {}, failure.about), element("p", {}, element("strong", {}, "What to do: "), failure.advice));
        });
        list.replaceChildren(...(cards.length ? cards : [element("li", { class: "card good" }, "Nothing has failed.")]));
      } catch (failure) {
        failed(list, failure);
      }
    });
  },
};

// ---- Configuration

const configuration = {
  title: "Configuration",
  show(root) {
    const search = element("input", { id: "key", autocomplete: "off", spellcheck: "false" });
    const changed = element("input", { id: "changed", type: "checkbox" });
    const result = element("div", { "aria-live": "polite" });
    let keys = [];
    const draw = () => {
      const wanted = search.value.trim().toLowerCase();
      const fits = (key) => key.key.includes(wanted) && (!changed.checked || !key.is_default);
      const rows = keys.filter(fits).map((key) => [
        mono(key.key),
        [element("span", {}, mono(key.value ?? "chosen at startup"), key.after_restart ? element("span", { class: "warn" }, ` after a restart: ${key.after_restart}`) : undefined), "value"],
        key.is_default ? [key.origin ?? "default", "dim"] : [mono(key.origin)],
        key.is_live ? "reload" : "restart",
      ]);
      result.replaceChildren(table("Current configuration", [["Key"], ["Value"], ["Set in"], ["A new value requires a"]], rows, "No key matches."));
    };
    search.addEventListener("input", draw);
    changed.addEventListener("input", draw);
    root.append(
      element("p", { class: "dim" }, "Secrets are masked."),
      element(
        "form",
        { class: "search", role: "search", onsubmit: (event) => event.preventDefault() },
        element("div", {}, element("label", { for: "key" }, "Key contains"), search),
        element("label", { class: "check", for: "changed" }, changed, " only values that are not the default"),
      ),
      result,
    );
    call("GET", "/configuration").then(
      (loaded) => {
        keys = loaded.keys;
        draw();
      },
      (failure) => failed(result, failure),
    );
  },
};

// ---- Nodes

const nodes = {
  title: "Nodes",
  show(root) {
    const result = element("div", { "aria-live": "polite" });
    root.append(element("p", { class: "dim" }, "The nodes of the cluster, as this one knows them."), result);
    return every(2, async () => {
      try {
        const known = await call("GET", "/nodes");
        const rows = known.nodes.map((node) => [
          node.is_own ? element("span", {}, mono(node.name), " (this node)") : mono(node.name),
          node.state,
          `${node.allocations}`,
          `${node.load_percent} %`,
          `${node.bindings}`,
          mono(node.addresses.join(", ")),
          node.version,
        ]);
        const columns = [["Name"], ["State"], ["Allocations", "number"], ["Of its limit", "number"], ["Bindings", "number"], ["Addresses"], ["Version"]];
        const away = known.engine.is_up ? undefined : element("p", { class: "warn" }, `The engine has not responded for ${duration(known.engine.since_s)}: this is what was known last.`);
        const total = element("p", {}, `${known.total.nodes} nodes: ${known.total.allocations} allocations, ${known.total.bindings} bindings.`);
        result.replaceChildren(...[away, table("Nodes", columns, rows, "None."), total].filter(Boolean));
      } catch (failure) {
        failed(result, failure);
      }
    });
  },
};

export const views = { now, sessions, sip, nodes, failures, configuration };
