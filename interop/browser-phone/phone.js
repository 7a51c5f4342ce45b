// A phone made of JsSIP. Its media go through a relay only. The driver calls the functions of `phone` by name (voice.js).
"use strict";

const JsSIP = load(PACKAGES.jssip);
let agent = null;
let iceServers = [];
// The session that the functions are about: the latest one.
let session = null;

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
      iceServers = relaysOver(transport, result.servers);
    }
    return result;
  },

  wait(name) {
    return nextEvent(name, () => session?.status);
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

  receives() {
    return receives(session.connection);
  },

  // Waits until no audio has come for a second. Chromium may remove the statistics of a direction that is on hold.
  async receivesNothing() {
    const received = async () => (await report(session.connection))?.received ?? null;
    let before = await received();
    return until("no more audio", async () => {
      await sleep(1000);
      const now = await received();
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

drive(phone);
