// A worker in JavaScript, for node 20 or newer, without dependencies.
//
//     LEASEMILL_URL=http://127.0.0.1:7411 node worker.mjs
//
// `handlers` has a function for each kind of job. It gets the payload and { id, attempt, fence, signal }: the signal is
// aborted when the lease is lost, and the fence is for systems that can refuse an older one. What it returns is the
// result; what it throws is a failure, and the job is retried.
// With DRAIN=1 the worker ends when nothing is left to do.

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
    super(`lease lost: ${reason}`);
    this.reason = reason;
  }
}

/**
 * One command. A server that is away, or restarts, is waited for: every call here may be repeated, because it carries the
 * token or the request id it is about.
 */
async function call(verb, body, { signal } = {}) {
  const headers = { "content-type": "application/json" };
  if (process.env.LEASEMILL_TOKEN) headers.authorization = `Bearer ${process.env.LEASEMILL_TOKEN}`;
  for (let pause = 200; ; pause = Math.min(2 * pause, 2000)) {
    try {
      const response = await fetch(`${URL_}/v1/${verb}`, { method: "POST", headers, body: JSON.stringify(body), signal });
      const answer = await response.json();
      if (response.ok) return answer;
      if (answer.reason === "lost") throw new Lost(answer.answer[0].reason);
      if (response.status < 500 && response.status !== 429) {
        throw Object.assign(new Error(`${verb}: ${answer.detail}`), { isRefused: true });
      }
      log(`${verb}: ${answer.detail}`);
    } catch (error) {
      if (error instanceof Lost || error.isRefused || signal?.aborted) throw error;
      log(`no answer to ${verb}, trying again: ${error.cause?.code ?? error.message}`);
    }
    await sleep(pause * (0.5 + Math.random() / 2));
  }
}

async function run(lease) {
  const held = { job_id: lease.job.id, token: lease.token };
  const losing = new AbortController();
  const heartbeat = setInterval(async () => {
    try {
      await call("extend", { leases: [held] });
    } catch (error) {
      losing.abort(error);
    }
  }, lease.terms.lease_ttl_us / 3000);
  try {
    await call("start", { reports: [held] });
    const handler = handlers[lease.job.kind];
    if (handler === undefined) {
      // Another worker may know this kind: give it back, and say why.
      const report = { ...held, delay_us: 1_000_000, error: `no handler for ${lease.job.kind}` };
      await call("release", { reports: [report] });
      return;
    }
    const { attempt, fence } = lease;
    const job = { id: lease.job.id, attempt, fence, signal: losing.signal };
    let report;
    try {
      report = ["ack", { ...held, result: (await handler(lease.job.payload, job)) ?? null }];
    } catch (error) {
      if (losing.signal.aborted) throw losing.signal.reason;
      report = ["nack", { ...held, error: String(error.stack ?? error) }];
    }
    const [outcome] = await call(report[0], { reports: [report[1]] });
    log(`job ${lease.job.id}: ${outcome.outcome}`);
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    log(`job ${lease.job.id} is another worker's now: ${error.reason}`);
  } finally {
    clearInterval(heartbeat);
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
