// A client of the HTTP API of queuehint, for Node 20 and later, without dependencies.
//
//   const jobs = new Client("http://127.0.0.1:8400", { authorization: "Basic ..." });
//   await jobs.enqueue([{ id: "order-17", task: "ship", claims: [{ path: ["customers", "c1"] }], arguments: { n: 17 } }]);

/** A refusal, with the class of the error and its facts. */
export class Problem extends Error {
  constructor(status, { error, detail, facts } = {}) {
    super(`${error ?? status}: ${detail ?? "no answer of a board"}`);
    Object.assign(this, { status, error, facts });
  }
}

export class Client {
  #root;
  #headers;

  constructor(root, headers = {}) {
    this.#root = root.replace(/\/$/, "");
    this.#headers = headers;
  }

  /** Ask a question: get("/jobs/order-17/why"), get("/stats", { path: "customers:c1" }). */
  get(path, parameters = {}) {
    return this.#fetch(`/api/v1${path}?${new URLSearchParams(parameters)}`);
  }

  /** Give an order: post("/places/customers:c1/pause"). One without an answer may be repeated. */
  post(path, body = {}) {
    const headers = { "content-type": "application/json" };
    return this.#fetch(`/api/v1${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  }

  /** Enqueue jobs, all or nothing; with the same ids again, nothing more. */
  enqueue(jobs) {
    return this.post("/jobs", { jobs });
  }

  /** Read a job, by an id that may hold any sign. */
  job(id, parameters) {
    return this.get(`/jobs/${encodeURIComponent(id)}`, parameters);
  }

  /** Yield events from the number `after` on; a connection that is lost goes on behind the last event. */
  async *events(parameters = {}, { after, signal } = {}) {
    while (!signal?.aborted) {
      const headers = { ...this.#headers, ...(after === undefined ? {} : { "last-event-id": after }) };
      const query = new URLSearchParams(parameters);
      const answer = await fetch(`${this.#root}/events?${query}`, { headers, signal }).catch(() => undefined);
      if (answer && !answer.ok) throw new Problem(answer.status, await answer.json().catch(() => undefined));
      let text = "";
      try {
        for await (const part of answer?.body?.pipeThrough(new TextDecoderStream()) ?? []) {
          const blocks = (text + part).split("\n\n");
          text = blocks.pop();
          for (const block of blocks) {
            const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2)));
            after = fields.id ?? after;
            if (fields.data) yield { kind: fields.event, ...JSON.parse(fields.data), after };
          }
        }
      } catch (error) {
        if (!(error instanceof TypeError) && error.name !== "AbortError") throw error;
      }
      if (!signal?.aborted) await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  async #fetch(path, options = {}) {
    const headers = { ...this.#headers, ...options.headers };
    const answer = await fetch(this.#root + path, { ...options, headers });
    const body = await answer.json().catch(() => undefined);
    if (!answer.ok) throw new Problem(answer.status, body);
    return body;
  }
}
