import { defineConfig } from "vitest/config"

// Some tests wait for time-to-lives of seconds: a busy machine gets more time, and another try.
export default defineConfig({ test: { testTimeout: 60_000, retry: 2 } })
