// BullMQ on Node: the same jobs, orders and report as the peers of redis_peers.py.
//
//   BENCH='{"url": ..., "jobs": ..., "out": ...}' NODE_FOLDER=folder node bullmq.mjs work|produce one|bulk|flows|paced plain N
import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.NODE_FOLDER + "/");
const { Queue, Worker, FlowProducer } = require("bullmq");

const orders = JSON.parse(process.env.BENCH);
const connection = { host: "127.0.0.1", port: Number(new URL(orders.url).port) };
const now = () => Number(process.hrtime.bigint()); // the clock of time.monotonic_ns
const cpu = () => { const { user, system } = process.cpuUsage(); return (user + system) * 1000; };
const [, , role, mode, , count] = process.argv; // the shape is always the same

if (role === "work") {
  let done = 0, first = 0, cpuFirst = 0;
  const waits = [];
  const work = (job) => {
    if (job.name === "child") return;
    if (job.data.sent) waits.push(now() - job.data.sent);
    done += 1;
    if (done === 1) [first, cpuFirst] = [now(), cpu()];
    if (done === orders.jobs) {
      const report = { jobs: done, seconds: (now() - first) / 1e9, cpu_s: (cpu() - cpuFirst) / 1e9, waits, disorder: 0, last_ns: now() };
      fs.writeFileSync(orders.out + ".tmp", JSON.stringify(report));
      fs.renameSync(orders.out + ".tmp", orders.out);
    }
  };
  new Worker("bench", async (job) => work(job), { connection, concurrency: 50 });
} else {
  const options = { removeOnComplete: true };
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const begin = now();
  if (mode === "one") {
    for (let i = 0; i < count; i++) await queue.add("noop", { sent: 0 }, options);
  } else if (mode === "bulk") {
    for (let i = 0; i < count; i += 1000) {
      const length = Math.min(1000, count - i);
      await queue.addBulk(Array.from({ length }, () => ({ name: "noop", data: { sent: 0 }, opts: options })));
    }
  } else if (mode === "flows") {
    const flow = new FlowProducer({ connection });
    const child = () => ({ name: "child", queueName: "bench", data: {}, opts: options });
    for (let i = 0; i < count; i++) {
      const children = Array.from({ length: 100 }, child);
      await flow.add({ name: "join", queueName: "bench", data: {}, opts: options, children });
    }
    await flow.close();
  } else {
    for (let i = 0; i < count; i++) {
      const wait = (begin + i * 1e7 - now()) / 1e6;
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      await queue.add("noop", { sent: now() }, options);
    }
  }
  const seconds = (now() - begin) / 1e9;
  await queue.close();
  console.log(JSON.stringify({ seconds, begin_ns: begin }));
}
