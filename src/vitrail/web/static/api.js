/** Client of the HTTP API: each call returns data or throws an ApiError with the problem and a fix. */

import { pause, restored } from "./connection.js";
import { keyOf } from "./targets.js";

/** Tries of a request that fails although the server responds. */
const MAX_TRIES = 3;

export class ApiError extends Error {
  constructor(what, fix = "", status = 0) {
    super(what);
    this.what = what;
    this.fix = fix;
    this.status = status;
  }
}

/** Send a request; if the connection is lost, wait for the server and send it again. */
async function send(path, options) {
  for (let tries = 1; ; ) {
    try {
      return await fetch(path, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (await restored()) tries = 1;
      else if (tries >= MAX_TRIES)
        throw new ApiError("The server closes the connection.", "Try again, or send a smaller file.");
      else tries += 1;
    }
  }
}

async function request(method, path, body, signal) {
  const isForm = body instanceof FormData;
  const response = await send(path, {
    method,
    signal,
    headers: body && !isForm ? { "Content-Type": "application/json" } : {},
    body: isForm ? body : body && JSON.stringify(body),
  });
  if (response.ok) return response;
  const content = await response.json().catch(() => null);
  const wait = response.headers.get("Retry-After");
  const fix = content?.error?.fix ?? "Try again.";
  throw new ApiError(
    content?.error?.what ?? `The server returned status ${response.status}.`,
    wait ? `${fix} (in about ${wait} s)` : fix,
    response.status,
  );
}

const requestJson = async (...args) => (await request(...args)).json();

/** How to store an image again after the server was restarted, and its new id. */
const origins = new Map();
const newIds = new Map();
let onNewId = () => {};

/** The id under which an image is stored now. */
export const currentId = (id) => (newIds.has(id) ? currentId(newIds.get(id)) : id);

/** Say how to store an image again that was opened by its id. */
export const setOrigin = (id, store) => origins.set(id, store);

/** Call a function with the old and the new id whenever an image was stored again. */
export const watchIds = (call) => {
  onNewId = call;
};

async function remember(store) {
  const stored = await store();
  origins.set(stored.picture, store);
  return stored;
}

/** Send a request for an image; if the server no longer has the image, store it again first. */
async function requestForImage(path, body, signal) {
  const withImage = () => requestJson("POST", path, { ...body, picture: body.picture && currentId(body.picture) }, signal);
  try {
    return await withImage();
  } catch (error) {
    const id = currentId(body.picture);
    if (error.status !== 404 || !error.what.startsWith("image") || !origins.has(id)) throw error;
    const { picture } = await remember(origins.get(id));
    if (picture !== id) {
      newIds.set(id, picture);
      onNewId(id, picture);
    }
    return withImage();
  }
}

export const models = () => requestJson("GET", "/api/models");
export const samples = (model) => requestJson("GET", `/api/samples?model=${encodeURIComponent(model)}`);
export const useSample = (model, sample) =>
  remember(() => requestJson("POST", "/api/pictures/sample", { model, sample }));
/** The most probable classes, prompts, boxes or regions, and those asked for; `index` is the key of each. */
export async function predict(input, signal) {
  const found = await requestForImage("/api/predict", input, signal);
  const named = (entries) =>
    entries.map((entry) => (entry.target ? { ...entry, index: keyOf(entry.target) } : entry));
  return { ...found, top: named(found.top), asked: named(found.asked), written: found.written && named(found.written) };
}
export const explain = (body) => requestForImage("/api/explain", body);
export const check = (body) => requestForImage("/api/check", body);
export const curves = (body) => requestForImage("/api/curves", body);
export const remove = (body, signal) => requestForImage("/api/remove", body, signal);
export const attention = (body, signal) => requestForImage("/api/attention", body, signal);
export const job = (id) => requestJson("GET", `/api/jobs/${id}`);
export const cancel = (id) => request("DELETE", `/api/jobs/${id}`);
export const imageUrl = (model, image, frame = 0) =>
  `/api/pictures/${currentId(image)}.png?model=${encodeURIComponent(model)}${frame ? `&frame=${frame}` : ""}`;
export const originalUrl = (image) => `/api/pictures/${currentId(image)}/original.jpg`;
export const image = (model, id) =>
  requestJson("GET", `/api/pictures/${encodeURIComponent(id)}?model=${encodeURIComponent(model)}`);

/** A file of a job and the name to save it under. */
export async function file(id, name) {
  const response = await request("GET", `/api/jobs/${id}/${name}`);
  const [, fileName = name] = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "") ?? [];
  return { blob: await response.blob(), fileName };
}

export function upload(model, file) {
  const form = new FormData();
  form.append("file", file, file.name || "image");
  return remember(() => requestJson("POST", `/api/pictures?model=${encodeURIComponent(model)}`, form));
}

/**
 * Follow a job until it ends. If the connection is lost, following continues when the server responds again.
 *
 * @param id the job
 * @param on {job, item, end, lost}: called with the whole job, with each changed item, at the end with the state of the
 *   job, or when the server no longer has the job
 * @returns a function that stops following
 */
export function follow(id, on) {
  let source = null;
  let stopped = false;
  let failures = 0;
  const close = () => {
    stopped = true;
    source?.close();
  };
  const receive = (call) => (event) => {
    failures = 0;
    if (!stopped) call(JSON.parse(event.data));
  };
  const open = () => {
    source = new EventSource(`/api/jobs/${id}/events`);
    source.addEventListener("job", receive(on.job));
    source.addEventListener("item", receive(on.item));
    source.addEventListener("end", (event) => {
      close();
      on.end(JSON.parse(event.data).state);
    });
    source.onerror = reopen;
  };
  const reopen = async () => {
    source.close();
    failures += 1;
    if (!(await restored())) await pause(Math.min(5000, 250 * 2 ** failures));
    if (stopped) return;
    try {
      await job(id);
    } catch (error) {
      close();
      on.lost(error);
      return;
    }
    if (!stopped) open();
  };
  open();
  return close;
}
