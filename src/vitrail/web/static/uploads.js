/** Uploaded files, kept in this browser so that they can be sent again after the server has dropped them. */

const DATABASE = "vitrail";
const STORE = "uploads";
/** Number of files kept; the oldest are removed. */
const MAX_FILES = 12;

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function run(mode, work) {
  const database = await openDatabase();
  try {
    return await work(database.transaction(STORE, mode).objectStore(STORE));
  } finally {
    database.close();
  }
}

/** Keep a file under the id of its image; failures are ignored, since the page works without. */
export async function keepFile(id, file) {
  try {
    await run("readwrite", async (store) => {
      await result(store.put({ id, file, time: Date.now() }));
      const all = await result(store.getAll());
      const old = all.sort((a, b) => b.time - a.time).slice(MAX_FILES);
      await Promise.all(old.map((entry) => result(store.delete(entry.id))));
    });
  } catch {
    // private windows may have no storage
  }
}

/** The files kept, the latest first: [{id, file, time}]; none where there is no storage. */
export async function recentFiles() {
  try {
    const all = await run("readonly", (store) => result(store.getAll()));
    return all.sort((a, b) => b.time - a.time);
  } catch {
    return [];
  }
}

/** The file of an image, or null if this browser does not have it. */
export async function findFile(id) {
  try {
    return (await run("readonly", (store) => result(store.get(id))))?.file ?? null;
  } catch {
    return null;
  }
}
