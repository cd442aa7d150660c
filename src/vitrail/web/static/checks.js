/** Checks of the maps: run by themselves once all maps are ready, as a job of their own that can be stopped. */

import * as api from "./api.js";
import { targetFields, targetOf } from "./jobs.js";

/** Wait this long after the last map, in milliseconds: the user may still be choosing. */
const DELAY = 400;

const keyOf = (method, target) => `${method}|${target}`;

export class MapChecks {
  /** @param onChange called whenever a check has changed */
  constructor(onChange) {
    this.onChange = onChange;
    this.enabled = true;
    this.setInput(null);
  }

  /** Start over with another image or model. */
  setInput(input) {
    this.pause();
    this.input = input;
    this.items = new Map();
  }

  /** The check of a map: {state, progress, check, error}, or undefined. */
  item(method, target) {
    return this.items.get(keyOf(method, target));
  }

  /** Check the maps that have no result yet, soon; called whenever maps have changed. */
  update(methods, targets, idle) {
    if (!this.input || !this.enabled) return;
    const missing = methods.filter((method) =>
      targets.some((target) => !["done", "failed"].includes(this.item(method, target)?.state)),
    );
    const wanted = JSON.stringify([missing, targets]);
    if (!idle || !missing.length) {
      if (!idle) this.pause();
      return;
    }
    if (this.job || wanted === this.wanted) return;
    this.wanted = wanted;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#start(missing, targets), DELAY);
  }

  /** Stop the running check; finished results stay. */
  pause() {
    clearTimeout(this.timer);
    this.wanted = null;
    this.session = (this.session ?? 0) + 1;
    if (!this.job) return;
    this.close?.();
    api.cancel(this.job.id).catch(() => {}); // it may be finished
    this.#clearOpen();
    this.job = this.close = null;
  }

  /** Stop checking, or start again; chosen by the user. */
  setEnabled(enabled) {
    this.enabled = enabled;
    if (!enabled) this.pause();
    this.onChange();
  }

  /** Number of maps that are checked, and that are to be checked. */
  progress(methods, targets) {
    const items = methods.flatMap((method) => targets.map((target) => this.item(method, target)));
    const done = items.filter((item) => item && ["done", "failed"].includes(item.state)).length;
    return { done, total: items.length, running: Boolean(this.job) };
  }

  #clearOpen() {
    for (const [key, item] of this.items) if (!["done", "failed"].includes(item.state)) this.items.delete(key);
  }

  async #start(methods, targets) {
    const { session } = this;
    let job;
    try {
      job = await api.check({ ...this.input, methods, ...targetFields(targets) });
    } catch (error) {
      if (session !== this.session) return;
      const message = { what: error.what ?? String(error), fix: error.fix ?? "" };
      for (const method of methods)
        for (const target of targets) this.items.set(keyOf(method, target), { state: "failed", error: message });
      this.onChange();
      return;
    }
    if (session !== this.session) {
      api.cancel(job.id).catch(() => {});
      return;
    }
    this.job = job;
    const update = (item) => {
      if (session !== this.session) return;
      this.items.set(keyOf(item.method, targetOf(item)), item);
      this.onChange();
    };
    const end = () => {
      if (session !== this.session) return;
      this.job = this.close = this.wanted = null;
      this.#clearOpen();
      this.onChange();
    };
    this.close = api.follow(job.id, {
      job: (whole) => whole.items.forEach(update),
      item: update,
      end,
      lost: end,
    });
  }
}
