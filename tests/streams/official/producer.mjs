// Appends numbered messages with the official client's idempotent producer, until its input ends. Prints how many.
// The producer itself has no limit: a server that is slower than the messages would be left a backlog of minutes.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const [url, name] = process.argv.slice(2)

// Tries again while there is no server, or it has no database. The client itself sees to gaps, which are a 409.
async function patient(...request) {
  for (;;) {
    try {
      const response = await fetch(...request)
      if (response.status < 500) return response
    } catch (error) {
      if (!(error instanceof TypeError)) throw error // not one of the network
    }
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

const stream = new DurableStream({ url, contentType: "application/json", fetch: patient })
let fault = null
const producer = new IdempotentProducer(stream, name, {
  fetch: patient,
  onError: (error) => {
    fault = error
  },
})
let stopped = false
process.stdin.on("end", () => (stopped = true)).resume()
let count = 0
while (!stopped && fault === null) {
  if (producer.inFlightCount < 50) producer.append(JSON.stringify([name, count++]))
  await new Promise((resolve) => setTimeout(resolve, 10))
}
if (fault === null) await producer.flush()
if (fault !== null) throw fault
console.log(count)
process.exit(0)
