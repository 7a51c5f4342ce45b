// What the phones in pages have in common: events for the driver, and the statistics of a voice call. The driver calls `ask`; each
// function of a phone resolves to what happened, and the driver judges that.
"use strict";

const TEST_TIMEOUT_MS = 30000;
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

// The next event with this name; those before it are forgotten.
function nextEvent(name, state) {
  return until(`${name} (now: ${state()})`, () => {
    while (events.length > 0) {
      const event = events.shift();
      if (event.name === name) return event;
    }
    return null;
  });
}

// A voice call that gets all of its bytes by relays.
async function report(connection) {
  const stats = await connection.getStats();
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

// Waits until a second of audio has come, and not only silence.
async function receives(connection) {
  const first = await until("statistics of received audio", () => report(connection));
  return until("more audio", async () => {
    const now = await report(connection);
    return now.packets >= first.packets + 50 && now.energy > first.energy ? { first, now } : null;
  });
}

// The URIs of the server for TURN (`Ice-Servers`) over one transport.
function relaysOver(transport, servers) {
  const all = JSON.parse(servers);
  for (const one of all) one.urls = one.urls.filter((url) => url.endsWith(`transport=${transport}`));
  return all;
}

// Lets the driver call the functions of this phone. An exception is part of what it returns.
function drive(phone) {
  window.ask = async (name, parameters) => {
    try {
      return { value: (await phone[name](...parameters)) ?? null };
    } catch (error) {
      return { failure: `${error}`, events };
    }
  };
}
