// Graphile Worker with its local queue and batched completions. A finished job is deleted, by its id alone.

import { Logger, makeWorkerUtils, run as runWorker } from "graphile-worker";
import { argumentsOf, now, run } from "./peer.mjs";

const ENQUEUE_BATCH = 1000;
const silent = new Logger(() => () => {});

const preset = (url) => ({
  worker: {
    connectionString: url,
    concurrentJobs: 24,
    maxPoolSize: 10,
    localQueue: { size: 2000 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: silent,
  },
});

run({
  async install(url) {
    const utils = await makeWorkerUtils({ preset: preset(url) });
    await utils.migrate();
  },

  async bulk(url, count) {
    const utils = await makeWorkerUtils({ preset: preset(url) });
    await utils.withPgClient((client) => client.query("select 1"));
    const began = now();
    for (let first = 0; first < count; first += ENQUEUE_BATCH) {
      const size = Math.min(ENQUEUE_BATCH, count - first);
      await utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: argumentsOf() })));
    }
    return (now() - began) / 1e9;
  },

  async producer(url) {
    const utils = await makeWorkerUtils({ preset: preset(url) });
    return (given) => utils.addJob("noop", given);
  },

  async work(url, tally) {
    tally.begin();
    await runWorker({ preset: preset(url), taskList: { noop: async (payload) => tally.called(payload.sent_ns) } });
  },
});
