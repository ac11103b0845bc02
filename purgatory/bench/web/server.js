// The same requests with Node's plain http module: a Map of waiting responses, and setTimeout.
"use strict";

const http = require("node:http");

const counts = new Map();
const topics = new Map(); // topic -> Set of waiting responses
let waiting = 0;

function answer(response, value) {
  const body = JSON.stringify(value);
  response.writeHead(200, { "content-type": "application/json", "content-length": Buffer.byteLength(body) });
  response.end(body);
}

function leave(topic, poll) {
  if (topics.get(topic)?.delete(poll)) {
    waiting -= 1;
    clearTimeout(poll.timer);
    return true;
  }
  return false;
}

const server = http.createServer((request, response) => {
  const url = new URL(request.url, "http://localhost");
  const topic = url.searchParams.get("topic");
  if (url.pathname === "/wait") {
    const after = Number(url.searchParams.get("after"));
    if ((counts.get(topic) ?? 0) > after) return answer(response, counts.get(topic));
    if (!topics.has(topic)) topics.set(topic, new Set());
    const poll = { response, after };
    const timeout = 1000 * Number(url.searchParams.get("timeout") ?? 300);
    poll.timer = setTimeout(() => leave(topic, poll) && answer(response, counts.get(topic) ?? 0), timeout);
    topics.get(topic).add(poll);
    waiting += 1;
    response.on("close", () => leave(topic, poll));
  } else if (url.pathname === "/publish") {
    counts.set(topic, (counts.get(topic) ?? 0) + 1);
    answer(response, counts.get(topic));
    for (const poll of topics.get(topic) ?? []) {
      if (counts.get(topic) > poll.after && leave(topic, poll)) answer(poll.response, counts.get(topic));
    }
  } else if (url.pathname === "/waiting") {
    answer(response, waiting);
  } else if (url.pathname === "/now") {
    answer(response, "now");
  } else {
    response.writeHead(404).end();
  }
});

server.keepAliveTimeout = 600_000;
server.requestTimeout = 0;
server.headersTimeout = 0;
server.timeout = 0;
server.listen({ port: Number(process.argv[2] ?? 0), host: "0.0.0.0", backlog: 2048 }, () => {
  console.error(`running on http://127.0.0.1:${server.address().port}`);
});
process.on("SIGTERM", () => {
  for (const [topic, polls] of topics) {
    for (const poll of polls) if (leave(topic, poll)) answer(poll.response, counts.get(topic) ?? 0);
  }
  server.close(() => process.exit(0));
  server.closeIdleConnections();
  setTimeout(() => server.closeAllConnections(), 500).unref();
});
