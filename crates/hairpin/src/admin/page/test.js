// The test of the server: this browser makes two allocations over each transport and sends a message from one to the other.

import { call } from "./api.js";
import { element } from "./main.js";

/** Longer than ICE over TCP and TLS takes if two packets are lost. */
const LIMIT_MS = 10_000;

const NAMES = { udp: "UDP", tcp: "TCP", tls: "TLS", dtls: "DTLS" };

/** The transport of a URI (RFC 7065). */
function transport(uri) {
  const isTcp = /[?&]transport=tcp/.test(uri) || (uri.startsWith("turns:") && !uri.includes("transport="));
  if (uri.startsWith("turns:")) return isTcp ? "tls" : "dtls";
  return isTcp ? "tcp" : "udp";
}

const ADVICE = {
  udp: "Check that firewalls permit UDP to this port, and to the relay ports (relay.ports).",
  tcp: "Check that firewalls permit TCP to this port, and that listen.tcp has this port.",
  tls: "Check that firewalls permit TCP to this port, and that the certificate has the name of this URI. A browser rejects a certificate that it does not trust.",
};

function within(promise, what) {
  let timer;
  const limit = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(what)), LIMIT_MS)));
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

/** Relays a message between two connections of this page, each with a relayed address of this server. */
async function attempt(server) {
  const sides = [0, 1].map(() => new RTCPeerConnection({ iceServers: [server], iceTransportPolicy: "relay" }));
  const [left, right] = sides;
  let found = "";
  let refusal = "";
  try {
    sides.forEach((side, place) => {
      const other = sides[1 - place];
      side.addEventListener("icecandidate", ({ candidate }) => {
        if (!candidate?.candidate) return;
        found ||= `${candidate.address}:${candidate.port}`;
        other.addIceCandidate(candidate).catch(() => {});
      });
      side.addEventListener("icecandidateerror", ({ errorCode, errorText }) => (refusal = `${errorCode} ${errorText}`));
    });
    const began = performance.now();
    let gatheredMs;
    const gathered = new Promise((resolve, reject) => {
      left.addEventListener("icecandidate", ({ candidate }) => {
        if (candidate?.candidate) {
          gatheredMs = performance.now() - began;
          resolve();
        } else if (!candidate && !found) reject(new Error(refusal || "no answer"));
      });
    });
    const channel = left.createDataChannel("test");
    const echoed = new Promise((resolve) => {
      right.addEventListener("datachannel", (event) => event.channel.addEventListener("message", ({ data }) => event.channel.send(data)));
      channel.addEventListener("open", () => {
        const sent = performance.now();
        channel.send("hairpin");
        channel.addEventListener("message", () => resolve(performance.now() - sent));
      });
    });
    await left.setLocalDescription();
    await right.setRemoteDescription(left.localDescription);
    await right.setLocalDescription();
    await left.setRemoteDescription(right.localDescription);
    await within(gathered, refusal || "no answer within 10 s");
    const roundTrip = await within(echoed, "").catch(() => undefined);
    return { found, gatheredMs, roundTrip };
  } finally {
    sides.forEach((side) => side.close());
  }
}

function outcome(uri, how, result) {
  const set = (kind, badge, ...text) => {
    const head = element("h2", {}, NAMES[how], element("span", { class: `badge ${kind}` }, badge));
    result.replaceChildren(head, element("p", { class: "mono" }, uri), ...text.map((line) => element("p", {}, line)));
  };
  return {
    runs: () => set("dim", "testing"),
    works: ({ found, gatheredMs, roundTrip }) => {
      const got = `Relayed address ${found} after ${Math.round(gatheredMs)} ms.`;
      if (roundTrip !== undefined) return set("good", "works", `${got} A message went through two relays and back in ${roundTrip.toFixed(1)} ms.`);
      const why = "No message came through between two relayed addresses: the server denies its own address as a peer (private addresses require peers.allow), or a firewall blocks relay.ports.";
      return set("warn", "allocates, does not relay", got, why);
    },
    fails: (why) => set("bad", "does not work", why, ADVICE[how]),
    skips: () => set("dim", "not tested", "Browsers do not support TURN over DTLS. Test it with hairpin probe turn."),
  };
}

export const test = {
  title: "Test my server",
  show(root) {
    const start = element("button", { type: "button", id: "test-start" }, "Test now");
    const list = element("ul", { class: "cards", "aria-live": "polite", id: "test-results" });
    const run = async () => {
      start.disabled = true;
      list.dataset.state = "running";
      list.replaceChildren();
      try {
        const { iceServers } = await call("GET", "/ice-servers", { service: "turn", username: "live-page", ttl: "300" });
        const [{ urls, username, credential }] = iceServers;
        for (const uri of urls) {
          const how = transport(uri);
          const result = element("li", { class: "card", "data-transport": how });
          list.append(result);
          const state = outcome(uri, how, result);
          if (how === "dtls") {
            state.skips();
            continue;
          }
          state.runs();
          try {
            const got = await attempt({ urls: uri, username, credential });
            state.works(got);
            result.dataset.result = got.roundTrip === undefined ? "allocates" : "works";
          } catch (failure) {
            result.dataset.result = "fails";
            state.fails(`${failure.message}.`);
          }
        }
      } catch (failure) {
        list.append(element("li", { class: "card bad" }, failure.message));
      }
      list.dataset.state = "done";
      start.disabled = false;
    };
    start.addEventListener("click", run);
    root.append(
      element("p", {}, "For each transport, this browser makes two allocations, as a WebRTC call does, and sends a message from one relayed address to the other. The result is valid for clients in the network of this browser."),
      start,
      list,
    );
  },
};
