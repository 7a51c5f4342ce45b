// A phone made of JsSIP. Its media go through a relay only. The driver calls the functions of `phone` by name; each resolves to what
// happened, and the driver judges that.
"use strict";

const JsSIP = load(PACKAGES.jssip);
const TEST_TIMEOUT_MS = 30000;

let agent = null;
let iceServers = [];
// The session that the functions are about: the latest one.
let session = null;
const events = [];

function happened(name, detail = {}) {
  events.push({ name, ...detail });
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Resolves to the value of `look` as soon as it has one.
async function until(what, look) {
  const end = Date.now() + TEST_TIMEOUT_MS;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within ${TEST_TIMEOUT_MS} ms: ${what}`);
    await sleep(50);
  }
}

function watch(other) {
  session = other;
  const end = (name) => (event) => happened(name, {
    originator: event.originator, cause: event.cause, code: event.message?.status_code ?? null,
  });
  other.on("progress", (event) => happened("progress", { originator: event.originator }));
  other.on("confirmed", () => happened("confirmed"));
  other.on("ended", end("ended"));
  other.on("failed", end("failed"));
  other.on("hold", (event) => happened("hold", { originator: event.originator }));
  other.on("unhold", (event) => happened("unhold", { originator: event.originator }));
  other.on("refer", (event) => {
    happened("refer", { to: event.request.refer_to.uri.toString() });
    // It announces its session as every call does.
    event.accept(undefined, options());
  });
  // An outgoing session has its connection before the page gets the session.
  if (other.connection) listen(other.connection);
  other.on("peerconnection", (event) => listen(event.peerconnection));
}

function listen(connection) {
  connection.ontrack = (event) => {
    document.getElementById("loudspeaker").srcObject = new MediaStream([event.track]);
  };
}

const options = () => ({
  mediaConstraints: { audio: true, video: false },
  pcConfig: { iceServers, iceTransportPolicy: "relay" },
});

// A voice call that gets all of its bytes by relays.
async function report() {
  const stats = await session.connection.getStats();
  const all = [...stats.values()];
  const inbound = all.find((one) => one.type === "inbound-rtp" && one.kind === "audio");
  const transport = all.find((one) => one.type === "transport" && one.selectedCandidatePairId);
  if (!inbound || !transport) return null;
  const pair = stats.get(transport.selectedCandidatePairId);
  const local = stats.get(pair.localCandidateId);
  const remote = stats.get(pair.remoteCandidateId);
  return {
    received: inbound.bytesReceived, packets: inbound.packetsReceived, energy: inbound.totalAudioEnergy, dtls: transport.dtlsState,
    local: local.candidateType, remote: remote.candidateType, url: local.url,
    localPort: local.port, remotePort: remote.port, protocol: local.relayProtocol,
  };
}

const phone = {
  // Connects and registers. `transport` selects one of the URIs of the server for TURN.
  async register(server, user, password, transport) {
    agent = new JsSIP.UA({
      sockets: [new JsSIP.WebSocketInterface(server)], uri: `sip:${user}@example.org`, password,
      connection_recovery_min_interval: 600, connection_recovery_max_interval: 600,
    });
    const outcome = new Promise((resolve) => {
      const failed = (event) => resolve({ code: event.response?.status_code ?? null, cause: event.cause });
      agent.on("registrationFailed", failed);
      agent.on("disconnected", (event) => resolve({ code: null, cause: `no connection: ${event.code}` }));
      agent.on("registered", (event) => resolve({
        code: event.response.status_code, servers: event.response.getHeader("Ice-Servers") ?? null,
      }));
    });
    agent.on("newRTCSession", (event) => {
      watch(event.session);
      if (event.originator === "remote") happened("incoming", { from: event.request.from.uri.toString() });
    });
    agent.start();
    const result = await outcome;
    if (result.servers) {
      iceServers = JSON.parse(result.servers);
      for (const one of iceServers) one.urls = one.urls.filter((url) => url.endsWith(`transport=${transport}`));
    }
    return result;
  },

  // The next event with this name; those before it are forgotten.
  wait(name) {
    return until(`${name} (now: ${session?.status})`, () => {
      while (events.length > 0) {
        const event = events.shift();
        if (event.name === name) return event;
      }
      return null;
    });
  },

  forget() {
    events.length = 0;
  },

  call(target) {
    agent.call(target, options());
  },

  answer() {
    session.answer(options());
  },

  // Ends, cancels or refuses the call, with a code if it is refused.
  terminate(code) {
    session.terminate(code ? { status_code: code } : {});
  },

  hold() {
    return new Promise((resolve, reject) => {
      if (!session.hold({}, () => resolve("held"))) reject(new Error("it can't be held"));
    });
  },

  unhold() {
    return new Promise((resolve, reject) => {
      if (!session.unhold({}, () => resolve("resumed"))) reject(new Error("it can't be resumed"));
    });
  },

  // Sends REFER. An event says how the transferred call ends.
  refer(target) {
    const told = (event) => happened("transferred", { code: event.status_line?.status_code ?? null });
    session.refer(target, { eventHandlers: { accepted: told, failed: told, requestFailed: told } });
  },

  // Waits until a second of audio has come, and not only silence.
  async receives() {
    const first = await until("statistics of received audio", report);
    return until("more audio", async () => {
      const now = await report();
      return now.packets >= first.packets + 50 && now.energy > first.energy ? { first, now } : null;
    });
  },

  // Waits until no audio has come for a second.
  async receivesNothing() {
    let before = (await report()).received;
    return until("no more audio", async () => {
      await sleep(1000);
      const now = (await report()).received;
      if (now === before) return { received: now };
      before = now;
      return null;
    });
  },

  async stop() {
    const disconnected = new Promise((resolve) => agent.on("disconnected", resolve));
    agent.stop();
    await disconnected;
  },
};

// What the driver calls. An exception is part of what it returns.
window.ask = async (name, parameters) => {
  try {
    return { value: (await phone[name](...parameters)) ?? null };
  } catch (error) {
    return { failure: `${error}`, events };
  }
};
