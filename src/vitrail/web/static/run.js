/** Explanations of one subject: what is wanted, what is there, what is under way. */

import * as api from "./api.js";

/** Streams held open at once: a browser allows six connections to a host, and the page needs some for itself. */
const MOST_STREAMS = 3;

const keyOf = (method, target) => `${method}|${target}`;
const open = (item) => item.state === "queued" || item.state === "running";

export class Run {
  /** @param changed called whenever an item has changed */
  constructor(changed) {
    this.changed = changed;
    this.turn = 0;
    this.clear();
  }

  clear() {
    for (const job of this.jobs?.values() ?? []) this.#end(job);
    this.turn += 1;
    this.items = new Map();
    this.jobs = new Map();
    this.waiting = [];
    this.whole = new Map();
    this.streams = 0;
  }

  /** A new picture or text: everything known so far is dropped. */
  about(subject) {
    this.clear();
    this.subject = subject;
  }

  item(method, target) {
    return this.items.get(keyOf(method, target));
  }

  /**
   * Ask for what is missing. Cheap methods go together, since they share one pass; each other method is a job of its
   * own, so that it can be cancelled alone.
   *
   * @param methods [{spec, cheap}]
   * @param targets class indices
   */
  want(methods, targets) {
    const specs = new Set(methods.map((m) => m.spec));
    for (const [key, item] of this.items) {
      if (specs.has(item.method) && targets.includes(item.target)) continue;
      if (item.state !== "done") this.items.delete(key);
    }
    this.waiting = this.waiting.filter(
      (ask) => ask.methods.some((m) => specs.has(m)) && ask.targets.every((t) => targets.includes(t)),
    );
    for (const job of this.jobs.values()) {
      if (!job.methods.some((m) => specs.has(m)) || !job.targets.some((t) => targets.includes(t))) this.#end(job);
    }
    const groups = new Map();
    for (const { spec, cheap } of methods) {
      const missing = targets.filter((t) => !this.item(spec, t));
      if (!missing.length) continue;
      const name = `${cheap ? "" : spec} ${missing}`;
      if (!groups.has(name)) groups.set(name, { methods: [], targets: missing, cheap });
      groups.get(name).methods.push(spec);
      for (const t of missing)
        this.items.set(keyOf(spec, t), { method: spec, target: t, state: "queued", progress: 0 });
    }
    const asks = [...groups.values()];
    this.waiting.unshift(...asks.filter((ask) => ask.cheap));
    this.waiting.push(...asks.filter((ask) => !ask.cheap));
    this.changed();
    this.#next();
  }

  /** Stop a method that is under way; what is done stays. */
  stop(method) {
    const without = (ask) => ({ ...ask, methods: ask.methods.filter((m) => m !== method) });
    this.waiting = this.waiting.map(without).filter((ask) => ask.methods.length);
    for (const job of this.jobs.values()) {
      if (!job.methods.includes(method)) continue;
      this.#end(job);
      // Others of the same job were not meant: they are asked for again, and what is done comes at once.
      const { methods, targets } = without(job);
      if (methods.length) this.waiting.push({ methods, targets });
    }
    for (const item of this.items.values()) if (item.method === method && open(item)) item.state = "cancelled";
    this.changed();
    this.#next();
  }

  /** Try a method again that failed or was cancelled. */
  forget(method) {
    for (const [key, item] of this.items) if (item.method === method && item.state !== "done") this.items.delete(key);
  }

  /** Those of some methods that are done for all of some targets. */
  done(methods, targets) {
    return methods.filter((method) => targets.every((target) => this.item(method, target)?.state === "done"));
  }

  /** One finished job with all of these that are done, for files and links; asked for where it was made in pieces. */
  async job(asked, targets, progress = () => {}) {
    const methods = this.done(asked, targets);
    if (!methods.length)
      throw new api.Trouble("No map is ready yet.", "Wait for the first one, or choose a method that works here.");
    const name = JSON.stringify([[...methods].sort(), targets]);
    if (!this.whole.has(name)) {
      const job = await api.explain({ ...this.subject, methods, targets, seed: 0 });
      await new Promise((done, failed) => {
        const parts = new Map();
        const note = (item) => {
          parts.set(item.key, item.state === "done" ? 1 : item.progress);
          progress([...parts.values()].reduce((sum, part) => sum + part, 0) / parts.size);
        };
        api.follow(job.id, { job: (whole) => whole.items.forEach(note), item: note, end: done, lost: failed });
      });
      this.whole.set(name, job.id);
    }
    return this.whole.get(name);
  }

  /** Take over a job that is there already, as from a link. */
  adopt(job) {
    for (const item of job.items) this.items.set(keyOf(item.method, item.target), item);
    const methods = [...new Set(job.items.map((item) => item.method))];
    if (job.state === "done") this.whole.set(JSON.stringify([[...methods].sort(), job.targets]), job.id);
    else if (job.state === "queued" || job.state === "running") this.#follow(job, { methods, targets: job.targets });
  }

  #end(job) {
    job.close?.();
    this.jobs.delete(job.id);
    if (job.counted) this.streams -= 1;
    api.cancel(job.id).catch(() => {}); // it may be over already, or belong to somebody else
  }

  #next() {
    while (this.waiting.length && this.streams < MOST_STREAMS) this.#start(this.waiting.shift());
  }

  async #start(ask) {
    const turn = this.turn;
    this.streams += 1;
    let job;
    try {
      const { methods, targets } = ask;
      job = await api.explain({ ...this.subject, methods, targets, seed: 0 });
    } catch (error) {
      if (turn !== this.turn) return;
      this.streams -= 1;
      // One bad name must not take its neighbours along.
      if (ask.methods.length > 1) this.waiting.unshift(...ask.methods.map((m) => ({ ...ask, methods: [m] })));
      else this.#fail(ask, error);
      this.#next();
      return;
    }
    if (turn !== this.turn) {
      api.cancel(job.id).catch(() => {});
      return;
    }
    this.#follow(job, ask, true);
  }

  #follow(job, ask, counted = false) {
    const held = { id: job.id, methods: ask.methods, targets: ask.targets, counted, ahead: job.ahead };
    this.jobs.set(job.id, held);
    const take = (item) => {
      if (!this.jobs.has(job.id)) return;
      this.items.set(keyOf(item.method, item.target), item);
      this.changed();
    };
    const over = () => {
      if (!this.jobs.delete(job.id)) return;
      if (counted) this.streams -= 1;
      this.changed();
      this.#next();
    };
    held.close = api.follow(job.id, {
      job: (whole) => {
        held.ahead = whole.ahead;
        whole.items.forEach(take);
      },
      item: take,
      end: () => {
        const done = ask.methods.every((m) => ask.targets.every((t) => this.item(m, t)?.state === "done"));
        if (done) this.whole.set(JSON.stringify([[...ask.methods].sort(), ask.targets]), job.id);
        over();
      },
      lost: (error) => {
        this.#fail(ask, error);
        over();
      },
    });
  }

  #fail({ methods, targets }, error) {
    for (const method of methods) {
      for (const target of targets) {
        const known = this.item(method, target);
        if (known && !open(known)) continue;
        const told = { what: error.what ?? String(error), fix: error.fix ?? "" };
        this.items.set(keyOf(method, target), { method, target, state: "failed", error: told });
      }
    }
    this.changed();
  }

  /** How many jobs are before the next of ours. */
  get ahead() {
    const held = [...this.jobs.values()];
    return held.length ? Math.min(...held.map((job) => job.ahead ?? 0)) : 0;
  }
}
