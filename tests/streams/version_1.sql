-- The tables that the server of commit 3f953d8 has made in PostgreSQL.
CREATE SCHEMA durable_streams;
SET search_path = durable_streams;
CREATE SEQUENCE stream_ids;
CREATE TABLE streams (
    id BIGINT PRIMARY KEY, path TEXT COLLATE "C" NOT NULL UNIQUE, content_type TEXT NOT NULL, media_type TEXT NOT NULL,
    config TEXT NOT NULL, ttl BIGINT, expires_at TEXT, deadline DOUBLE PRECISION, tail BIGINT NOT NULL,
    closed INTEGER NOT NULL, closed_by TEXT, seq TEXT, source BIGINT, fork BIGINT NOT NULL, lineage TEXT NOT NULL,
    refs BIGINT NOT NULL, deleted INTEGER NOT NULL, created DOUBLE PRECISION NOT NULL, version BIGINT NOT NULL
);
CREATE INDEX streams_deadline ON streams (deadline) WHERE deadline IS NOT NULL;
CREATE TABLE data (
    stream BIGINT NOT NULL, first BIGINT NOT NULL, last BIGINT NOT NULL, data BYTEA NOT NULL,
    PRIMARY KEY (stream, first)
);
CREATE TABLE producers (
    stream BIGINT NOT NULL, name TEXT NOT NULL, epoch BIGINT NOT NULL, seq BIGINT NOT NULL, PRIMARY KEY (stream, name)
);
CREATE TABLE subscriptions (
    id TEXT PRIMARY KEY, config TEXT NOT NULL, type TEXT NOT NULL, pattern TEXT, url TEXT, wake_stream TEXT,
    lease DOUBLE PRECISION NOT NULL, description TEXT, created DOUBLE PRECISION NOT NULL, generation BIGINT NOT NULL,
    wake TEXT, holder TEXT, lease_until DOUBLE PRECISION, attempts BIGINT NOT NULL, attempt_at DOUBLE PRECISION,
    incarnation BIGINT NOT NULL
);
CREATE TABLE links (
    subscription TEXT NOT NULL, path TEXT NOT NULL, explicit INTEGER NOT NULL, glob INTEGER NOT NULL,
    acked BIGINT NOT NULL, woken BIGINT, PRIMARY KEY (subscription, path)
);
CREATE INDEX links_path ON links (path);
CREATE TABLE secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE UNLOGGED TABLE snapshots (
    process TEXT PRIMARY KEY, at TIMESTAMPTZ NOT NULL, snapshot TEXT NOT NULL
);
