// Two RTCPeerConnections that may only use relayed candidates, so that every byte between them passes the TURN server
// twice. `exchange` is called by the driver; it resolves to what really happened, and the driver judges that. It runs in a browser's page
// and in node.
"use strict";

// One label per connection: what the page reports must say which side it speaks of.
function connect(iceServers) {
  const config = { iceServers, iceTransportPolicy: "relay", iceCandidatePoolSize: 0 };
  const left = new RTCPeerConnection(config);
  const right = new RTCPeerConnection(config);
  const errors = [];
  const candidates = [];
  for (const [name, from, to] of [["left", left, right], ["right", right, left]]) {
    from.onicecandidate = (event) => {
      if (!event.candidate || !event.candidate.candidate) return;
      candidates.push(`${name}: ${event.candidate.candidate}`);
      to.addIceCandidate(event.candidate).catch((error) => errors.push(`${name}: ${error}`));
    };
    from.onicecandidateerror = (event) =>
      errors.push(`${name}: ${event.errorCode} ${event.errorText} (${event.url} from ${event.address})`);
  }
  return { left, right, errors, candidates };
}

async function negotiate({ left, right }) {
  await left.setLocalDescription(await left.createOffer());
  await right.setRemoteDescription(left.localDescription);
  await right.setLocalDescription(await right.createAnswer());
  await left.setRemoteDescription(right.localDescription);
}

// The type of both ends of the pair that carries the data, as the browser's own statistics tell it.
async function selectedPair(connection) {
  const stats = await connection.getStats();
  for (const report of stats.values()) {
    if (report.type !== "transport" || !report.selectedCandidatePairId) continue;
    const pair = stats.get(report.selectedCandidatePairId);
    const local = stats.get(pair.localCandidateId);
    const remote = stats.get(pair.remoteCandidateId);
    return {
      local: local.candidateType, remote: remote.candidateType,
      protocol: local.relayProtocol, address: local.address, bytesSent: pair.bytesSent,
    };
  }
  return null;
}

const text = (from, number) => `${from} ${number} ` + "x".repeat(number % 900);

// Checks each message of the other side against what must come next. Listens as soon as there is a channel: a browser may hand over
// what has come before a page has asked for it, to nobody.
function listen(channel, from, peer, count, state) {
  return new Promise((resolve, reject) => {
    channel.onmessage = (event) => {
      const expected = text(peer, state.received);
      if (event.data !== expected) reject(new Error(`${from} got '${event.data}', expected '${expected}'`));
      state.received += 1;
      if (state.received === count) resolve();
    };
    channel.onclose = () => reject(new Error(`${from}: the data channel closed early`));
  });
}

// Sends `count` messages.
function send(channel, from, count, state) {
  for (let number = 0; number < count; number += 1) channel.send(text(from, number));
  state.sent = count;
}

// Rejects as soon as it is certain that there will be no candidate: nothing else would end the exchange.
function withoutCandidates({ left, candidates }) {
  return new Promise((_, reject) => {
    left.onicegatheringstatechange = () => {
      const none = left.iceGatheringState === "complete" && !candidates.some((text) => text.startsWith("left"));
      if (none) reject(new Error("no candidate"));
    };
  });
}

async function exchange(iceServers, count) {
  const pair = connect(iceServers);
  const outcome = { left: { sent: 0, received: 0 }, right: { sent: 0, received: 0 } };
  try {
    const leftChannel = pair.left.createDataChannel("hairpin");
    const leftDone = listen(leftChannel, "left", "right", count, outcome.left);
    const leftOpen = new Promise((resolve) => { leftChannel.onopen = resolve; });
    const right = new Promise((resolve) => {
      pair.right.ondatachannel = ({ channel }) => {
        const done = listen(channel, "right", "left", count, outcome.right);
        const open = channel.readyState === "open" || new Promise((opened) => { channel.onopen = opened; });
        resolve({ channel, done, open });
      };
    });
    const failed = withoutCandidates(pair);
    // It may reject before anybody awaits it.
    failed.catch(() => {});
    await negotiate(pair);
    const { channel: rightChannel, done: rightDone, open: rightOpen } = await Promise.race([right, failed]);
    await Promise.all([leftOpen, rightOpen]);
    send(leftChannel, "left", count, outcome.left);
    send(rightChannel, "right", count, outcome.right);
    await Promise.all([leftDone, rightDone]);
    outcome.left.pair = await selectedPair(pair.left);
    outcome.right.pair = await selectedPair(pair.right);
  } catch (error) {
    outcome.failure = String(error);
  } finally {
    outcome.iceErrors = pair.errors;
    outcome.candidates = pair.candidates;
    outcome.states = [pair.left.iceConnectionState, pair.right.iceConnectionState];
    pair.left.close();
    pair.right.close();
    // The browser gives its allocations back, unless it is ended before it comes to that.
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  return outcome;
}

// In node.
if (typeof module !== "undefined") module.exports = { exchange };
