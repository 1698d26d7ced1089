// graphile-worker on Node: jobs with a place are those of a named queue, which runs one at a time.
//
//   BENCH='{"url": ..., "jobs": ..., "out": ..., "concurrency": ...}' NODE_FOLDER=folder node graphile.mjs
//       set_up | work | produce bulk held|free N
import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.NODE_FOLDER + "/");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");

const orders = JSON.parse(process.env.BENCH);
const logger = new Logger(() => (level, message) => { if (level === "error") console.error(message); });
const now = () => Number(process.hrtime.bigint()); // the clock of time.monotonic_ns
const cpu = () => { const { user, system } = process.cpuUsage(); return (user + system) * 1000; };
const HELD_MS = 100;
const BATCH = 1000;
const [, , role, , shape, count] = process.argv;

if (role === "work") {
  let done = 0, first = 0, cpuFirst = 0;
  const taskList = {
    held: () => new Promise((resolve) => setTimeout(resolve, HELD_MS)),
    free: () => {
      done += 1;
      if (done === 1) [first, cpuFirst] = [now(), cpu()];
      if (done === orders.jobs) {
        const report = { jobs: done, seconds: (now() - first) / 1e9, cpu_s: (cpu() - cpuFirst) / 1e9, waits: [], disorder: 0, last_ns: now() };
        fs.writeFileSync(orders.out + ".tmp", JSON.stringify(report));
        fs.renameSync(orders.out + ".tmp", orders.out);
      }
    },
  };
  await run({
    connectionString: orders.url,
    taskList,
    logger,
    preset: { worker: { concurrentJobs: orders.concurrency, maxPoolSize: orders.concurrency + 2, pollInterval: 100 } },
  });
} else {
  const utils = await makeWorkerUtils({ connectionString: orders.url, logger });
  await utils.migrate();
  if (role === "produce") {
    const jobs = Array.from({ length: Number(count) }, (_, i) => ({
      identifier: shape, payload: {}, queueName: shape === "held" ? "hot" : `free-${i}`,
    }));
    const begin = now();
    for (let i = 0; i < jobs.length; i += BATCH) await utils.addJobs(jobs.slice(i, i + BATCH));
    console.log(JSON.stringify({ seconds: (now() - begin) / 1e9, begin_ns: begin }));
  }
  await utils.release();
}
