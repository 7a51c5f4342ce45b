// Loads CommonJS modules in a page, because the npm package of JsSIP has no file for browsers. Each file is loaded once, when a module
// requires it.
"use strict";

const PACKAGES = {
  jssip: "/node_modules/jssip/lib/JsSIP.js",
  debug: "/node_modules/debug/src/browser.js",
  ms: "/node_modules/ms/index.js",
  events: "/node_modules/events/events.js",
  "sdp-transform": "/node_modules/sdp-transform/lib/index.js",
};
const loaded = new Map();

function read(path) {
  const request = new XMLHttpRequest();
  // The value of `require` is needed at once.
  request.open("GET", path, false);
  request.send();
  return request.status === 200 ? request.responseText : null;
}

function load(path) {
  if (loaded.has(path)) return loaded.get(path).exports;
  const text = read(path);
  if (text === null) throw new Error(`no module at ${path}`);
  const module = { exports: {} };
  loaded.set(path, module);
  if (path.endsWith(".json")) {
    module.exports = JSON.parse(text);
  } else {
    const within = (name) => load(PACKAGES[name] ?? resolve(name, path));
    new Function("module", "exports", "require", `${text}\n//# sourceURL=${path}`)(module, module.exports, within);
  }
  return module.exports;
}

function resolve(name, from) {
  const path = new URL(name, `http://localhost${from}`).pathname;
  return /\.js(on)?$/.test(path) ? path : `${path}.js`;
}
