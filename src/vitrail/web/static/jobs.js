/** Jobs for one input: which maps are requested, computed, queued or running. */

import * as api from "./api.js";
import { contrastKey, fieldsOf, isContrast, keyOf, partsOf } from "./targets.js";

/** Maximum number of open event streams: a browser allows six connections to a host, and the page needs some itself. */
const MAX_STREAMS = 3;

/** How often a job is requested again that the server has lost. */
const MAX_REPEATS = 3;

const itemKey = (method, target) => `${method}|${target}`;

/** What an item explains, as a key. */
export const targetOf = (item) =>
  item.contrast == null ? keyOf(item.target) : contrastKey(keyOf(item.target), keyOf(item.contrast));

/** The fields of a request for some targets. */
export function targetFields(targets) {
  if (!isContrast(targets[0])) return { targets: targets.map(fieldsOf) };
  const [first, second] = partsOf(targets[0]).map(fieldsOf);
  return { targets: [first], contrast: second };
}

const jobKey = (methods, targets) => JSON.stringify([[...methods].sort(), targets]);
const isOpen = (item) => item.state === "queued" || item.state === "running";

export class JobManager {
  /** @param onChange called whenever an item has changed */
  constructor(onChange) {
    this.onChange = onChange;
    this.session = 0;
    this.clear();
  }

  clear() {
    for (const job of this.jobs?.values() ?? []) this.#endJob(job);
    this.session += 1;
    this.items = new Map();
    this.jobs = new Map();
    this.waiting = [];
    this.completeJobs = new Map();
    this.streams = 0;
  }

  /** Start over with a new image or text. */
  setInput(input) {
    this.clear();
    this.input = input;
  }

  item(method, target) {
    return this.items.get(itemKey(method, target));
  }

  /**
   * Request the missing maps. Methods that share a pass form one job. Each other method is a job of its own, so that it
   * can be cancelled alone.
   *
   * @param methods [{spec, sharedPass}]
   * @param targets class indices
   */
  request(methods, targets) {
    const specs = new Set(methods.map((m) => m.spec));
    for (const [key, item] of this.items) {
      if (specs.has(item.method) && targets.includes(item.target)) continue;
      if (item.state !== "done") this.items.delete(key);
    }
    this.waiting = this.waiting.filter(
      (one) => one.methods.some((m) => specs.has(m)) && one.targets.every((t) => targets.includes(t)),
    );
    for (const job of this.jobs.values()) {
      if (!job.methods.some((m) => specs.has(m)) || !job.targets.some((t) => targets.includes(t))) this.#endJob(job);
    }
    const groups = new Map();
    for (const { spec, sharedPass } of methods) {
      const missing = targets.filter((t) => !this.item(spec, t));
      if (!missing.length) continue;
      const name = `${sharedPass ? "" : spec} ${missing}`;
      if (!groups.has(name)) groups.set(name, { methods: [], targets: missing, sharedPass });
      groups.get(name).methods.push(spec);
      for (const t of missing)
        this.items.set(itemKey(spec, t), { method: spec, target: t, state: "queued", progress: 0 });
    }
    const requests = [...groups.values()];
    this.waiting.unshift(...requests.filter((one) => one.sharedPass));
    this.waiting.push(...requests.filter((one) => !one.sharedPass));
    this.onChange();
    this.#startNext();
  }

  /** Cancel a method; finished maps stay. */
  cancel(method) {
    const without = (one) => ({ ...one, methods: one.methods.filter((m) => m !== method) });
    this.waiting = this.waiting.map(without).filter((one) => one.methods.length);
    for (const job of this.jobs.values()) {
      if (!job.methods.includes(method)) continue;
      this.#endJob(job);
      // Request the other methods of the job again; their finished maps come from the server's cache.
      const { methods, targets } = without(job);
      if (methods.length) this.waiting.push({ methods, targets });
    }
    for (const item of this.items.values()) if (item.method === method && isOpen(item)) item.state = "cancelled";
    this.onChange();
    this.#startNext();
  }

  /** Remove the failed or cancelled items of a method, so that they can be requested again. */
  reset(method) {
    for (const [key, item] of this.items) if (item.method === method && item.state !== "done") this.items.delete(key);
  }

  /** The methods that are done for all targets. */
  finished(methods, targets) {
    return methods.filter((method) => targets.every((target) => this.item(method, target)?.state === "done"));
  }

  /**
   * The id of one job with all finished maps, for downloads; a new job if they come from several jobs.
   *
   * @param onProgress called with the progress of a new job
   * @param lost the id of a job that the server no longer has
   */
  async completeJob(requested, targets, onProgress, lost = null) {
    const methods = this.finished(requested, targets);
    if (!methods.length)
      throw new api.ApiError(
        "No map is ready yet.",
        "Wait for the first one, or choose a method that applies to this model.",
      );
    const key = jobKey(methods, targets);
    if (this.completeJobs.get(key) === lost) this.completeJobs.delete(key);
    for (let repeats = 0; !this.completeJobs.has(key); repeats += 1) {
      const job = await api.explain({ ...this.input, methods, ...targetFields(targets), seed: 0 });
      const state = await this.#finalState(job, onProgress);
      if (state === "done") this.completeJobs.set(key, job.id);
      // A job that nobody followed for a while is cancelled: on a slow machine, also one that was only just started.
      else if (state !== "cancelled" || repeats === MAX_REPEATS)
        throw new api.ApiError(`The maps could not be put together: the job was ${state}.`, "Try again.");
    }
    return this.completeJobs.get(key);
  }

  /** Follow a job and return its state at the end. */
  #finalState(job, onProgress) {
    return new Promise((resolve, reject) => {
      const progress = new Map();
      const update = (item) => {
        progress.set(item.key, item.state === "done" ? 1 : item.progress);
        onProgress([...progress.values()].reduce((sum, part) => sum + part, 0) / progress.size);
      };
      api.follow(job.id, { job: (whole) => whole.items.forEach(update), item: update, end: resolve, lost: reject });
    });
  }

  /** Show an existing job, as from a link. */
  load(job) {
    for (const item of job.items) this.items.set(itemKey(item.method, targetOf(item)), item);
    const methods = [...new Set(job.items.map((item) => item.method))];
    const keys = job.targets.map(keyOf);
    const targets = job.contrast == null ? keys : [contrastKey(keys[0], keyOf(job.contrast))];
    if (job.state === "done") this.completeJobs.set(jobKey(methods, targets), job.id);
    else if (isOpen(job)) this.#follow(job, { methods, targets });
  }

  #endJob(job) {
    job.close?.();
    this.jobs.delete(job.id);
    if (job.counted) this.streams -= 1;
    api.cancel(job.id).catch(() => {}); // it may be finished, or belong to another client
  }

  #startNext() {
    while (this.waiting.length && this.streams < MAX_STREAMS) this.#start(this.waiting.shift());
  }

  async #start(request) {
    const session = this.session;
    this.streams += 1;
    let job;
    try {
      const { methods, targets } = request;
      job = await api.explain({ ...this.input, methods, ...targetFields(targets), seed: 0 });
    } catch (error) {
      if (session !== this.session) return;
      this.streams -= 1;
      // One invalid method must not fail the others: request them one by one.
      if (request.methods.length > 1)
        this.waiting.unshift(...request.methods.map((m) => ({ ...request, methods: [m] })));
      else this.#fail(request, error);
      this.#startNext();
      return;
    }
    if (session !== this.session) {
      api.cancel(job.id).catch(() => {});
      return;
    }
    this.#follow(job, request, true);
  }

  #follow(job, request, counted = false) {
    const active = { id: job.id, methods: request.methods, targets: request.targets, counted, ahead: job.ahead };
    this.jobs.set(job.id, active);
    const update = (item) => {
      if (!this.jobs.has(job.id)) return;
      this.items.set(itemKey(item.method, targetOf(item)), item);
      this.onChange();
    };
    const finish = () => {
      if (!this.jobs.delete(job.id)) return;
      if (counted) this.streams -= 1;
      this.onChange();
      this.#startNext();
    };
    active.close = api.follow(job.id, {
      job: (whole) => {
        active.ahead = whole.ahead;
        whole.items.forEach(update);
      },
      item: update,
      end: () => {
        const done = request.methods.every((m) => request.targets.every((t) => this.item(m, t)?.state === "done"));
        if (done) this.completeJobs.set(jobKey(request.methods, request.targets), job.id);
        finish();
      },
      lost: (error) => {
        if (!this.jobs.has(job.id)) return;
        const { repeats = 0 } = request;
        // A server that was restarted does not have the job: request it again.
        if (error.status === 404 && repeats < MAX_REPEATS) this.waiting.unshift({ ...request, repeats: repeats + 1 });
        else this.#fail(request, error);
        finish();
      },
    });
  }

  #fail({ methods, targets }, error) {
    for (const method of methods) {
      for (const target of targets) {
        const item = this.item(method, target);
        if (item && !isOpen(item)) continue;
        const message = { what: error.what ?? String(error), fix: error.fix ?? "" };
        this.items.set(itemKey(method, target), { method, target, state: "failed", error: message });
      }
    }
    this.onChange();
  }

  /** Whether no map is queued or running. */
  get idle() {
    return !this.jobs.size && !this.waiting.length && ![...this.items.values()].some(isOpen);
  }

  /** Number of jobs of other clients before the next of ours. */
  get ahead() {
    const active = [...this.jobs.values()];
    return active.length ? Math.min(...active.map((job) => job.ahead ?? 0)) : 0;
  }
}
