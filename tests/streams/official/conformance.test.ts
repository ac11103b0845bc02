// The suite's own runner does not find its tests under node_modules.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.CONFORMANCE_TEST_URL!, longPollTimeoutMs: 4000, subscriptions: true })
