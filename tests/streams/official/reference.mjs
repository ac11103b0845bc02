// The reference server on a free port, with its streams in memory, until its input ends. Prints its URL.
import { DurableStreamTestServer } from "@durable-streams/server"

const server = new DurableStreamTestServer({ port: 0, longPollTimeout: 1000 })
console.log(await server.start())
process.stdin.on("end", () => process.exit(0)).resume()
