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
  constructor(root, headers = {}) {
    Object.assign(this, { root: root.replace(/\/$/, ""), headers });
  }

  /** Ask a question: get("/stats", { path: "customers:c1" }). */
  get = (path, parameters = {}) => this.#json(`/api/v1${path}?${new URLSearchParams(parameters)}`);

  /** Read a job, by an id that may hold any sign. */
  job = (id, parameters) => this.get(`/jobs/${encodeURIComponent(id)}`, parameters);

  /** Give an order: post("/places/customers:c1/pause"). One without an answer may be repeated. */
  post = (path, body = {}) =>
    this.#json(`/api/v1${path}`, { method: "POST", body: JSON.stringify(body) }, { "content-type": "application/json" });

  /** Enqueue jobs, all or nothing; with the same ids again, nothing more. */
  enqueue = (jobs) => this.post("/jobs", { jobs });

  /** Yield events behind the number `after`; a connection that is lost goes on behind the last event. */
  async *events(parameters = {}, { after, signal } = {}) {
    for (; !signal?.aborted; await new Promise((resolve) => setTimeout(resolve, 1000))) {
      try {
        const last = after === undefined ? {} : { "last-event-id": after };
        const answer = await this.#fetch(`/events?${new URLSearchParams(parameters)}`, { signal }, last);
        let text = "";
        for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
          const blocks = (text + part).split("\n\n");
          text = blocks.pop();
          for (const block of blocks) {
            const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2)));
            after = fields.id ?? after;
            if (fields.data) yield { kind: fields.event, ...JSON.parse(fields.data), after };
          }
        }
      } catch (error) {
        if (error instanceof Problem && error.status !== 503) throw error;
      }
    }
  }

  #json = async (...request) => (await this.#fetch(...request)).json();

  async #fetch(path, options = {}, headers = {}) {
    const answer = await fetch(this.root + path, { ...options, headers: { ...this.headers, ...headers } });
    if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => undefined));
    return answer;
  }
}
