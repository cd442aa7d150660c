/** The connection to the server: says when it is lost, and tries again until the server responds. */

import { el } from "./dom.js";

/** Milliseconds between two tries; the last one repeats. */
const PAUSES = [500, 1000, 2000, 3000];
const SHOW_RESTORED = 2500;

const banner = el("div", { id: "connection", role: "status" });
banner.hidden = true;
document.body.append(banner);

let reconnecting = null;

/** Wait some milliseconds, or until the browser is online again. */
export function pause(milliseconds) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    addEventListener("online", end);
  });
}

async function responds() {
  try {
    return (await fetch("/api/health", { cache: "no-store" })).status < 500;
  } catch {
    return false;
  }
}

async function reconnect() {
  if (await responds()) return false;
  banner.textContent = "Connection lost, retrying …";
  banner.dataset.state = "lost";
  banner.hidden = false;
  let tries = 0;
  do {
    await pause(PAUSES[Math.min(tries, PAUSES.length - 1)]);
    tries += 1;
  } while (!(await responds()));
  banner.textContent = "Connected again.";
  banner.dataset.state = "restored";
  setTimeout(() => {
    if (!reconnecting) banner.hidden = true;
  }, SHOW_RESTORED);
  return true;
}

/** Wait until the server responds, after a request failed; returns whether it had been gone. */
export async function restored() {
  reconnecting ??= reconnect().finally(() => {
    reconnecting = null;
  });
  return reconnecting;
}
