// graphile-worker on Node: jobs with a place are those of a named queue, which runs one at a time.
//
//   BENCH='{"url": ..., "jobs": ..., "out": ..., "concurrency": ...}' NODE_FOLDER=folder node graphile.mjs
//       set_up | work | produce bulk held|free N | measure any|named
//
// "measure" takes the figures of postgres_peers.py in one process, and prints them. It is told the settings of the worker.
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
const [, , role, mode, shape, count] = process.argv;

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
} else if (role === "measure") {
  console.log(JSON.stringify(await measure()));
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

async function measure() {
  const utils = await makeWorkerUtils({ connectionString: orders.url, logger });
  await utils.migrate();
  const queueOf = (number) => (mode === "named" ? { queueName: `d${number % orders.paths}` } : {});
  const one = (number) => utils.addJob("noop", {}, queueOf(number));
  let left, all;
  const begin = (jobs) => new Promise((resolve) => { [left, all] = [jobs, resolve]; });
  const rates = {};
  const timed = async (name, jobs, work) => {
    const start = now();
    await work();
    rates[name] = jobs / ((now() - start) / 1e9);
  };
  await timed("bulk", orders.jobs, async () => {
    for (let i = 0; i < orders.jobs; i += orders.at_once) {
      const length = Math.min(orders.at_once, orders.jobs - i);
      await utils.addJobs(Array.from({ length }, (_, k) => ({ identifier: "noop", payload: {}, ...queueOf(i + k) })));
    }
  });
  await utils.withPgClient((client) => client.query("vacuum analyze"));
  const taskList = { noop: () => { if ((left -= 1) === 0) all(); } };
  const preset = { worker: { maxPoolSize: orders.worker.concurrentJobs + 2, ...orders.worker } };
  let runner;
  await timed("drain", orders.jobs, async () => {
    const done = begin(orders.jobs);
    runner = await run({ connectionString: orders.url, taskList, logger, preset });
    await done;
  });
  const waits = [];
  for (let i = 0; i < 200; i++) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    const done = begin(1);
    const start = now();
    await one(i);
    await done;
    waits.push((now() - start) / 1e6);
  }
  rates.p50 = waits.sort((a, b) => a - b)[waits.length >> 1];
  await runner.stop();
  const ones = Math.max(Math.floor(orders.jobs / 10), 50);
  await timed("one by one", ones, async () => {
    for (let i = 0; i < ones; i++) await one(i);
  });
  await utils.release();
  return rates;
}
