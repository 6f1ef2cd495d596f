// A worker in JavaScript, for node 20 or newer, without dependencies.
//
//     LEASEMILL_URL=http://127.0.0.1:7411 node worker.mjs
//
// `handlers` has a function for each kind of job. It gets the payload and { id, attempt, fence, signal }: the signal is
// aborted when the lease is lost, and the fence is for systems that can refuse an older one. What it returns is the
// result; what it throws is a failure, and the job is retried.
// With DRAIN=1 the worker ends once no job is due.

import { appendFile } from "node:fs/promises";
import { hostname } from "node:os";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const URL_ = process.env.LEASEMILL_URL ?? "http://127.0.0.1:7411";
const QUEUES = (process.env.QUEUES ?? "default").split(",");
const SLOTS = Number(process.env.SLOTS ?? 4);
const WAIT_S = process.env.DRAIN ? 1 : 20;
const worker = `${hostname()}-${process.pid}`;

const handlers = {
  async greet({ name }, job) {
    if (process.env.GREETINGS) await appendFile(process.env.GREETINGS, `${job.fence} hello ${name}\n`);
    return { greeting: `hello ${name}` };
  },
  async nap({ ms }, job) {
    await sleep(ms, undefined, { signal: job.signal });
    return { slept: ms };
  },
  async fail() {
    throw new Error("as it was asked to");
  },
};

const log = (message) => console.error(`${new Date().toISOString()} ${message}`);

/** The lease is not ours any more: `reason` says why. */
class Lost extends Error {
  constructor(reason) {
    super(`is another worker's now: ${reason}`);
  }
}

/** The server's answer to this call will always be the same. */
class Refused extends Error {}

/**
 * One command. A server that is away or busy is waited for, as long as it asks for: every call here may be repeated, because
 * it carries the token or the request id it is about. The signal ends the waiting.
 */
async function call(verb, body, { signal } = {}) {
  const headers = { "content-type": "application/json" };
  if (process.env.LEASEMILL_TOKEN) headers.authorization = `Bearer ${process.env.LEASEMILL_TOKEN}`;
  for (let pause = 200; ; pause = Math.min(2 * pause, 2000)) {
    let retryAfter = 0;
    try {
      const response = await fetch(`${URL_}/v1/${verb}`, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (response.ok) return await response.json();
      const problem = await response.json().catch(() => ({})); // a proxy may send anything
      const message = `${verb}: ${response.status} ${problem.detail ?? ""}`;
      if (problem.reason === "lost") throw new Lost(problem.answer[0].reason);
      if (response.status < 500 && response.status !== 429) throw new Refused(message);
      retryAfter = 1000 * Number(response.headers.get("retry-after")) || 0;
      log(`${message}, trying again`);
    } catch (error) {
      if (error instanceof Lost || error instanceof Refused || signal?.aborted) throw error;
      log(`no answer to ${verb}, trying again: ${error.cause?.code ?? error.message}`);
    }
    await sleep(Math.max(retryAfter, pause * (0.5 + Math.random() / 2)), undefined, { signal });
  }
}

/** The first result of `begin(signal)`, which is aborted when the time is over or the other signal is. */
async function within(ms, other, begin) {
  const limit = new AbortController();
  const abort = () => limit.abort();
  const timer = setTimeout(abort, Math.max(0, ms));
  other.addEventListener("abort", abort);
  try {
    if (other.aborted) abort();
    return await begin(limit.signal);
  } finally {
    clearTimeout(timer);
    other.removeEventListener("abort", abort);
  }
}

/** Extends a lease until `ended`. Aborts `losing` when it is lost, or nearly over without an answer. */
async function heartbeat(ttl, held, losing, ended) {
  let until = performance.now() + 0.9 * ttl;
  while (!ended.aborted) {
    await sleep(ttl / 3, undefined, { signal: ended }).catch(() => {});
    const began = performance.now();
    try {
      await within(until - began, ended, (signal) => call("extend", { leases: [held] }, { signal }));
      until = began + 0.9 * ttl;
    } catch (error) {
      if (ended.aborted) return;
      if (error instanceof Refused && performance.now() + ttl / 3 < until) {
        log(error.message);
      } else {
        const isAnswered = error instanceof Lost || error instanceof Refused;
        losing.abort(isAnswered ? error : new Error("got no answer in time: its lease ends, another worker will run it"));
        return;
      }
    }
  }
}

/** Runs one job and reports its end; nothing is reported of one whose lease is lost. */
async function run(lease) {
  const held = { job_id: lease.job.id, token: lease.token };
  const losing = new AbortController();
  const ended = new AbortController();
  const ttl = Math.min(lease.terms.lease_ttl_us / 1000, 3_600_000);
  const beating = heartbeat(ttl, held, losing, ended.signal);
  try {
    const [verb, report] = await handled(lease, held, losing.signal);
    losing.signal.throwIfAborted();
    ended.abort();
    const [outcome] = await call(verb, { reports: [report] });
    log(`job ${lease.job.id}: ${outcome.outcome}`);
  } catch (error) {
    log(`job ${lease.job.id} ${(losing.signal.reason ?? error).message}`); // the others go on
  } finally {
    ended.abort();
    await beating;
  }
}

/** How the run ends: a verb and its report. Throws if the job may not be begun. */
async function handled(lease, held, signal) {
  const handler = handlers[lease.job.kind];
  if (handler === undefined) {
    // Another worker may know this kind: give it back, and say why.
    return ["release", { ...held, delay_us: 1_000_000, error: `no handler for ${lease.job.kind}` }];
  }
  await call("start", { reports: [held] }, { signal });
  const { attempt, fence } = lease;
  try {
    const result = await handler(lease.job.payload, { id: lease.job.id, attempt, fence, signal });
    return ["ack", { ...held, result: result ?? null }];
  } catch (error) {
    return ["nack", { ...held, error: String(error.stack ?? error) }];
  }
}

const stopping = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => stopping.abort());

async function slot() {
  while (!stopping.signal.aborted) {
    let leases;
    try {
      const claim = { worker, queues: QUEUES, limit: 1, request_id: randomUUID(), wait_s: WAIT_S };
      leases = await call("claim", claim, { signal: stopping.signal });
    } catch (error) {
      if (stopping.signal.aborted) return; // the server releases what it granted to a caller that went away
      throw error;
    }
    for (const lease of leases) await run(lease);
    if (leases.length === 0 && process.env.DRAIN) return;
  }
}

await Promise.all(Array.from({ length: SLOTS }, slot));
log("stopped");
