/** The server, as functions: every call answers with data or throws a Trouble that says what and how to mend it. */

export class Trouble extends Error {
  constructor(what, fix = "", status = 0) {
    super(what);
    this.what = what;
    this.fix = fix;
    this.status = status;
  }
}

async function ask(method, path, body, signal) {
  const form = body instanceof FormData;
  let answer;
  try {
    answer = await fetch(path, {
      method,
      signal,
      headers: body && !form ? { "Content-Type": "application/json" } : {},
      body: form ? body : body && JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer.", "See whether vitrail serve is still running, then try again.");
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  const wait = answer.headers.get("Retry-After");
  const fix = told?.error?.fix ?? "Try again.";
  throw new Trouble(
    told?.error?.what ?? `The server answered ${answer.status}.`,
    wait ? `${fix} (in about ${wait} s)` : fix,
    answer.status,
  );
}

const json = async (...given) => (await ask(...given)).json();

export const models = () => json("GET", "/api/models");
export const samples = (model) => json("GET", `/api/samples?model=${encodeURIComponent(model)}`);
export const useSample = (model, sample) => json("POST", "/api/pictures/sample", { model, sample });
export const predict = (subject, signal) => json("POST", "/api/predict", subject, signal);
export const explain = (asked) => json("POST", "/api/explain", asked);
export const curves = (asked) => json("POST", "/api/curves", asked);
export const attention = (asked, signal) => json("POST", "/api/attention", asked, signal);
export const job = (id) => json("GET", `/api/jobs/${id}`);
export const cancel = (id) => ask("DELETE", `/api/jobs/${id}`);
export const code = async (id) => (await ask("GET", `/api/jobs/${id}/code.py`)).text();
export const pictureUrl = (model, picture) => `/api/pictures/${picture}.png?model=${encodeURIComponent(model)}`;
export const fileUrl = (id, name) => `/api/jobs/${id}/${name}`;

export function upload(model, file) {
  const form = new FormData();
  form.append("file", file, file.name || "picture");
  return json("POST", `/api/pictures?model=${encodeURIComponent(model)}`, form);
}

/**
 * Follow a job to its end.
 *
 * @param id the job
 * @param on {job, item, end, lost}: called with the whole job, each changed item, at the end, or when the line is lost
 * @returns a function that stops following
 */
export function follow(id, on) {
  const source = new EventSource(`/api/jobs/${id}/events`);
  let broken = 0;
  const close = () => source.close();
  source.addEventListener("job", (event) => {
    broken = 0;
    on.job(JSON.parse(event.data));
  });
  source.addEventListener("item", (event) => {
    broken = 0;
    on.item(JSON.parse(event.data));
  });
  source.addEventListener("end", () => {
    close();
    on.end();
  });
  source.onerror = () => {
    broken += 1;
    if (source.readyState !== EventSource.CLOSED && broken < 4) return;
    close();
    on.lost(new Trouble("The line to the server broke before the job was done.", "Reload the page to try again."));
  };
  return close;
}
