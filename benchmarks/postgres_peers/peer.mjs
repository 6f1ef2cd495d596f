// peer.py, for node: the same parts, the same lines.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const SAMPLE = 100;
const PAUSE_MS = [15, 35];

export const now = () => Number(process.hrtime.bigint());
export const argumentsOf = (sentNs = 0) => ({ account: "a1", cents: 500, sent_ns: sentNs });
export const reply = (fields = {}) => process.stdout.write(JSON.stringify(fields) + "\n");

export class Tally {
  constructor(count) {
    this.left = count;
    this.nextSample = count - SAMPLE;
    this.samples = [];
    this.waits = [];
  }

  begin() {
    this.began = now();
  }

  called(sentNs = 0, jobs = 1) {
    if (sentNs) this.waits.push((now() - sentNs) / 1e6);
    this.left -= jobs;
    if (this.left <= this.nextSample) {
      this.samples.push([this.left, now()]);
      this.nextSample = this.left - SAMPLE;
    }
    if (this.left === 0) reply({ began_ns: this.began, samples: this.samples, waits_ms: this.waits });
  }
}

async function singly(peer, url, count) {
  const send = await peer.producer(url);
  await send(argumentsOf());
  const began = now();
  for (let number = 0; number < count; number++) await send(argumentsOf());
  return (now() - began) / 1e9;
}

async function paced(peer, url, count) {
  const send = await peer.producer(url);
  const [shortest, longest] = PAUSE_MS;
  for (let number = 0; number < count; number++) {
    await sleep(shortest + Math.random() * (longest - shortest));
    await send(argumentsOf(now()));
  }
}

export async function run(peer) {
  const [part, url, text] = process.argv.slice(2);
  const count = Number(text);
  switch (part) {
    case "install":
      await peer.install(url);
      reply();
      break;
    case "bulk":
      reply({ seconds: await peer.bulk(url, count) });
      break;
    case "single":
      reply({ seconds: await singly(peer, url, count) });
      break;
    case "paced":
      await paced(peer, url, count);
      reply();
      break;
    case "work":
      reply();
      createInterface({ input: process.stdin }).once("line", () => peer.work(url, new Tally(count)));
      return;
    default:
      throw new Error(`${part} is none of install, bulk, single, paced, work`);
  }
  process.exit(0);
}
