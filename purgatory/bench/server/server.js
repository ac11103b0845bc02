// The reference server with its file-backed store on a free port: node server.js FOLDER. Prints its URL.
"use strict";

const { DurableStreamTestServer } = require("@durable-streams/server");

const [dataDir] = process.argv.slice(2);
new DurableStreamTestServer({ dataDir, port: 0 }).start().then((url) => console.error(`running on ${url}`));
