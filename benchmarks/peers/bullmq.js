// BullMQ on Redis: one process, as many jobs at once as there are slots; finished jobs are removed.
//
//     node bullmq.js NODE_MODULES work | fill FILE

const path = require("path");
const http = require("http");
const fs = require("fs");

const [modules, verb, file] = process.argv.slice(2);
const { Queue, Worker } = require(path.join(modules, "bullmq"));

const connection = { path: process.env.BENCH_REDIS_SOCKET, maxRetriesPerRequest: null };
const slots = Number(process.env.BENCH_SLOTS || 8);
const gpu = new URL(process.env.BENCH_GPU);
const agent = new http.Agent({ keepAlive: true, maxSockets: slots });

function call(body) {
  return new Promise((resolve, reject) => {
    const text = JSON.stringify(body);
    const request = http.request(
      {
        agent,
        host: gpu.hostname,
        port: gpu.port,
        path: "/run",
        method: "POST",
        headers: { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(text) },
      },
      (answer) => {
        let body = "";
        answer.on("data", (piece) => (body += piece));
        answer.on("end", () =>
          answer.statusCode === 200 && JSON.parse(body).status === "success"
            ? resolve()
            : reject(new Error(`the GPU server answered ${answer.statusCode}`)),
        );
      },
    );
    request.setNoDelay(true);
    request.on("error", reject);
    request.end(text);
  });
}

async function fill() {
  const queue = new Queue("jobs", { connection });
  const jobs = JSON.parse(fs.readFileSync(file));
  for (let at = 0; at < jobs.length; at += 500) {
    await queue.addBulk(
      jobs.slice(at, at + 500).map(([job, seconds]) => ({
        name: "run",
        data: { job, seconds },
        opts: { removeOnComplete: true, removeOnFail: true },
      })),
    );
  }
  await queue.close();
}

if (verb === "fill") {
  fill().then(() => process.exit(0), (error) => (console.error(error), process.exit(1)));
} else {
  const worker = new Worker("jobs", async (job) => call(job.data), { connection, concurrency: slots });
  worker.on("error", (error) => console.error(error));
}
