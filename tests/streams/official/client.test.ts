// The official client against a server: each test has a stream of its own.
import { expect, test } from "vitest"
import {
  DurableStream,
  type DurableStreamOptions,
  IdempotentProducer,
  StaleEpochError,
  stream,
} from "@durable-streams/client"

const JSON_TYPE = "application/json"
let count = 0
const fresh = () => `${process.env.STREAMS_URL}/v1/stream/typescript/${count++}`

// A fetch that keeps the answers' status codes.
function counting() {
  const statuses: number[] = []
  const counted: typeof fetch = async (...request) => {
    const response = await fetch(...request)
    statuses.push(response.status)
    return response
  }
  return { fetch: counted, statuses }
}

async function read(options: DurableStreamOptions & { offset?: string }) {
  return await (await stream({ ...options, live: false })).json()
}

test("appends are read from any offset", async () => {
  const handle = await DurableStream.create({ url: fresh(), contentType: "text/plain" })
  const before = await handle.head()
  expect(before).toMatchObject({ exists: true, contentType: "text/plain", streamClosed: false })
  await handle.append("hello ")
  const between = await handle.head()
  await handle.append(new TextEncoder().encode("wörld"))

  const all = await handle.stream({ live: false })
  expect(await all.text()).toBe("hello wörld")
  expect(all.upToDate).toBe(true)
  expect(all.offset).toBe((await handle.head()).offset)
  expect(await (await handle.stream({ live: false, offset: between.offset })).text()).toBe("wörld")
  expect(await (await handle.stream({ live: false, offset: all.offset })).text()).toBe("")
  expect(await (await handle.stream({ live: false, offset: "now" })).text()).toBe("")
})

test("values of JSON are messages", async () => {
  const handle = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE, body: '[{"a":1},[2]]' })
  await handle.append('"text"')
  await handle.append("[3]") // the client wraps it once more: it is one message
  expect(await read({ url: handle.url })).toEqual([{ a: 1 }, [2], "text", [3]])
})

test("appends at the same time are sent in batches, in their order", async () => {
  const { fetch, statuses } = counting()
  const handle = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE, fetch })
  const numbers = [...Array(100).keys()]
  await Promise.all(numbers.map((number) => handle.append(JSON.stringify(number))))
  expect(statuses.length).toBeLessThan(10)
  expect(await read({ url: handle.url })).toEqual(numbers)
})

test("a long poll follows a stream to its end", async () => {
  const { fetch, statuses } = counting()
  const handle = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE, body: "[0]" })
  const followed = await stream<number>({ url: handle.url, live: "long-poll", fetch })
  const reader = followed.jsonStream().getReader()
  expect((await reader.read()).value).toBe(0)
  for (const number of [1, 2, 3]) {
    const next = reader.read()
    if (number === 2) await expect.poll(() => statuses, { timeout: 60_000 }).toContain(204) // the server's time-out
    await handle.append(JSON.stringify(number))
    expect((await next).value).toBe(number)
  }
  const end = reader.read()
  await handle.close({ body: "4" })
  expect((await end).value).toBe(4)
  expect((await reader.read()).done).toBe(true)
  expect(followed.streamClosed).toBe(true)
})

test("events of a stream of JSON follow it to its end", async () => {
  const handle = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE, body: '["0"]' })
  const followed = await stream<string>({ url: handle.url, live: "sse" })
  const found: string[] = []
  for await (const message of followed.jsonStream()) {
    found.push(message)
    if (found.length < 3) await handle.append(JSON.stringify(`${found.length}\n\r ü`))
    else if (found.length === 3) await handle.close({ body: '"end"' })
  }
  expect(found).toEqual(["0", "1\n\r ü", "2\n\r ü", "end"])
  expect(followed.streamClosed).toBe(true)
})

test.each([
  ["text/plain", (number: number) => `${number}\nand a second line, ü\n`],
  ["application/octet-stream", (number: number) => `${number}\u0000\r\n`],
])("events of a stream of %s follow it to its end", async (contentType, message) => {
  const { fetch, statuses } = counting()
  const handle = await DurableStream.create({ url: fresh(), contentType })
  await handle.append(message(0))
  const followed = await stream({ url: handle.url, live: "sse", fetch })
  const found: string[] = []
  const decoder = new TextDecoder()
  followed.subscribeBytes((chunk) => void found.push(decoder.decode(chunk.data)))
  for (const number of [1, 2, 3]) {
    await handle.append(message(number))
    await expect.poll(() => found.join(""), { timeout: 60_000 }).toContain(message(number))
  }
  await handle.close()
  await followed.closed
  expect(found.join("")).toBe([0, 1, 2, 3].map(message).join(""))
  expect(statuses).toEqual([200, 200]) // the client catches up, and then has one stream of events
})

test("a stream that is closed takes no more", async () => {
  const handle = await DurableStream.create({ url: fresh(), contentType: "text/plain" })
  await handle.append("a")
  const { finalOffset } = await handle.close({ body: "b" })
  expect(await handle.close()).toEqual({ finalOffset })
  const closed = { status: 409, headers: { "stream-closed": "true", "stream-next-offset": finalOffset } }
  await expect(handle.append("c")).rejects.toMatchObject(closed)
  expect(await handle.head()).toMatchObject({ streamClosed: true, offset: finalOffset })
  const all = await handle.stream() // live: it ends all the same
  expect(await all.text()).toBe("ab")
})

test("a stream that is deleted is not found", async () => {
  const url = fresh()
  const handle = await DurableStream.create({ url, contentType: "text/plain", body: "a" })
  await handle.delete()
  expect(await handle.head()).toEqual({ exists: false })
  const missing = { status: 404 }
  await expect(handle.append("b")).rejects.toMatchObject(missing)
  await expect(handle.stream({ live: false })).rejects.toMatchObject(missing)
  await expect(handle.stream({ live: "sse" })).rejects.toMatchObject(missing)
  await expect(handle.delete()).rejects.toMatchObject(missing)
  await DurableStream.create({ url, contentType: JSON_TYPE, body: "[1]" })
  expect(await read({ url })).toEqual([1])
})

test("what contradicts a stream is a conflict", async () => {
  const url = fresh()
  const handle = await DurableStream.create({ url, contentType: "text/plain" })
  await DurableStream.create({ url, contentType: "text/plain" }) // the same once more
  const conflict = { status: 409 }
  await expect(DurableStream.create({ url, contentType: JSON_TYPE })).rejects.toMatchObject(conflict)
  await handle.append("a", { seq: "2" })
  await expect(handle.append("b", { seq: "1" })).rejects.toMatchObject(conflict)
  await expect(handle.append("b", { contentType: JSON_TYPE })).rejects.toMatchObject(conflict)
  await expect(handle.stream({ offset: "no offset", live: false })).rejects.toMatchObject({ status: 400 })
  expect(await (await handle.stream({ live: false })).text()).toBe("a")
})

test("a producer whose requests are all sent twice stores each message once", async () => {
  const twice: typeof fetch = async (...request) => {
    await (await fetch(...request)).arrayBuffer()
    return fetch(...request)
  }
  const handle = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE })
  const faults: Error[] = []
  const producer = new IdempotentProducer(handle, "a", { fetch: twice, lingerMs: 1, onError: (e) => faults.push(e) })
  const numbers = [...Array(200).keys()]
  for (const number of numbers) {
    producer.append(JSON.stringify(number))
    if (number % 20 === 0) await producer.flush()
  }
  await producer.close("200")
  expect(faults).toEqual([])
  expect(await read({ url: handle.url })).toEqual([...numbers, 200])
  expect((await handle.head()).streamClosed).toBe(true)
})

test("a producer of an older epoch is refused", async () => {
  const handle = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE })
  const faults: Error[] = []
  const onError = (error: Error) => faults.push(error)
  const newer = new IdempotentProducer(handle, "a", { epoch: 1, onError })
  newer.append("1")
  await newer.flush()
  const older = new IdempotentProducer(handle, "a", { epoch: 0, onError })
  older.append("2")
  await older.flush().catch(() => undefined)
  expect(faults).toEqual([expect.any(StaleEpochError)])
  const claiming = new IdempotentProducer(handle, "a", { epoch: 0, autoClaim: true, onError })
  claiming.append("3")
  await claiming.flush()
  expect(claiming.epoch).toBe(2)
  expect(faults.length).toBe(1)
  expect(await read({ url: handle.url })).toEqual([1, 3])
})
