/** Client of the HTTP API: each call returns data or throws an ApiError with the problem and a fix. */

export class ApiError extends Error {
  constructor(what, fix = "", status = 0) {
    super(what);
    this.what = what;
    this.fix = fix;
    this.status = status;
  }
}

async function request(method, path, body, signal) {
  const isForm = body instanceof FormData;
  let response;
  try {
    response = await fetch(path, {
      method,
      signal,
      headers: body && !isForm ? { "Content-Type": "application/json" } : {},
      body: isForm ? body : body && JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not respond.", "Check that vitrail serve is still running, then try again.");
  }
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

export const models = () => requestJson("GET", "/api/models");
export const samples = (model) => requestJson("GET", `/api/samples?model=${encodeURIComponent(model)}`);
export const useSample = (model, sample) => requestJson("POST", "/api/pictures/sample", { model, sample });
export const predict = (input, signal) => requestJson("POST", "/api/predict", input, signal);
export const explain = (body) => requestJson("POST", "/api/explain", body);
export const check = (body) => requestJson("POST", "/api/check", body);
export const curves = (body) => requestJson("POST", "/api/curves", body);
export const attention = (body, signal) => requestJson("POST", "/api/attention", body, signal);
export const job = (id) => requestJson("GET", `/api/jobs/${id}`);
export const cancel = (id) => request("DELETE", `/api/jobs/${id}`);
export const code = async (id) => (await request("GET", `/api/jobs/${id}/code.py`)).text();
export const imageUrl = (model, image) => `/api/pictures/${image}.png?model=${encodeURIComponent(model)}`;
export const originalUrl = (image) => `/api/pictures/${image}/original.jpg`;
export const image = (model, id) =>
  requestJson("GET", `/api/pictures/${encodeURIComponent(id)}?model=${encodeURIComponent(model)}`);
export const fileUrl = (id, name) => `/api/jobs/${id}/${name}`;

export function upload(model, file) {
  const form = new FormData();
  form.append("file", file, file.name || "image");
  return requestJson("POST", `/api/pictures?model=${encodeURIComponent(model)}`, form);
}

/**
 * Follow a job until it ends.
 *
 * @param id the job
 * @param on {job, item, end, lost}: called with the whole job, with each changed item, at the end, or when the
 *   connection is lost
 * @returns a function that stops following
 */
export function follow(id, on) {
  const source = new EventSource(`/api/jobs/${id}/events`);
  let failures = 0;
  const close = () => source.close();
  source.addEventListener("job", (event) => {
    failures = 0;
    on.job(JSON.parse(event.data));
  });
  source.addEventListener("item", (event) => {
    failures = 0;
    on.item(JSON.parse(event.data));
  });
  source.addEventListener("end", () => {
    close();
    on.end();
  });
  source.onerror = () => {
    failures += 1;
    if (source.readyState !== EventSource.CLOSED && failures < 4) return;
    close();
    on.lost(new ApiError("Connection lost before the job was finished.", "Reload the page to try again."));
  };
  return close;
}
