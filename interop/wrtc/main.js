// Drives @roamhq/wrtc, which is libwebrtc for node, against a server and prints one line per case: "ok NAME: DETAIL" or
// "FAIL NAME: REASON". The arguments: the server's port, user name and password.
"use strict";

const wrtc = require("@roamhq/wrtc");

globalThis.RTCPeerConnection = wrtc.RTCPeerConnection;
const { exchange } = require("../webrtc/exchange.js");

const MESSAGES = 1000;
const TEST_TIMEOUT_MS = 30000;

// There is no case for `turns:`: this library trusts the authorities that are compiled into it, and no others.
const CASES = [
  ["relay to relay, UDP", "127.0.0.1", "udp"],
  ["relay to relay, TCP", "127.0.0.1", "tcp"],
  ["relay to relay, TCP over IPv6", "[::1]", "tcp"],
];

function judge(outcome, transport) {
  if (outcome.failure) throw new Error(outcome.failure);
  for (const side of [outcome.left, outcome.right]) {
    if (side.sent !== MESSAGES || side.received !== MESSAGES) throw new Error("messages are missing");
    const { local, remote, protocol } = side.pair;
    if (local !== "relay" || remote !== "relay") throw new Error(`the pair is ${local} to ${remote}`);
    if (protocol !== transport) throw new Error(`the relay is reached over ${protocol}`);
  }
  return `${MESSAGES} messages each way, relay at ${outcome.left.pair.address}`;
}

function limited(promise) {
  const late = new Promise((_, reject) => setTimeout(reject, TEST_TIMEOUT_MS, new Error("it hung")).unref());
  return Promise.race([promise, late]);
}

async function main([port, username, credential]) {
  let status = 0;
  for (const [name, host, transport] of CASES) {
    const servers = [{ urls: `turn:${host}:${port}?transport=${transport}`, username, credential }];
    let outcome;
    try {
      outcome = await limited(exchange(servers, MESSAGES));
      console.log(`ok ${name}: ${judge(outcome, transport)}`);
    } catch (error) {
      const seen = JSON.stringify(outcome) ?? "";
      console.log(`FAIL ${name}: ${error.message} ${seen}`.replaceAll("\n", " "));
      status = 1;
    }
  }
  process.exit(status);
}

// What an exchange that failed leaves behind: its failure is printed already.
process.on("unhandledRejection", () => {});
main(process.argv.slice(2));
