// pg-boss with large batches: one handler call for each. Keeps finished jobs, completes the attempt that was fetched.

import { PgBoss } from "pg-boss";
import { argumentsOf, now, run } from "./peer.mjs";

const ENQUEUE_BATCH = 2000;
const BATCH = 2000;

async function started(url) {
  const boss = new PgBoss({ connectionString: url, useListenNotify: true });
  boss.on("error", (error) => process.stderr.write(`pg-boss: ${error}\n`));
  await boss.start();
  return boss;
}

run({
  async install(url) {
    const boss = await started(url);
    await boss.createQueue("work", { notify: true });
  },

  async bulk(url, count) {
    const boss = await started(url);
    const began = now();
    for (let first = 0; first < count; first += ENQUEUE_BATCH) {
      const size = Math.min(ENQUEUE_BATCH, count - first);
      await boss.insert("work", Array.from({ length: size }, () => ({ data: argumentsOf() })));
    }
    return (now() - began) / 1e9;
  },

  async producer(url) {
    const boss = await started(url);
    return (given) => boss.send("work", given);
  },

  async work(url, tally) {
    const boss = await started(url);
    tally.begin();
    const options = { batchSize: BATCH, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
    await boss.work("work", options, async (jobs) => {
      if (jobs[0].data.sent_ns) for (const job of jobs) tally.called(job.data.sent_ns);
      else tally.called(0, jobs.length);
    });
  },
});
