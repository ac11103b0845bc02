// The reference server with its file-backed store: node server.js FOLDER PORT
"use strict";

const { DurableStreamTestServer } = require("@durable-streams/server");

const [dataDir, port] = process.argv.slice(2);
new DurableStreamTestServer({ dataDir, port: Number(port) }).start();
