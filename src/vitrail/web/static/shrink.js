/** Photographs that the server refuses are decoded and reduced in the browser, where it can: HEIC, AVIF, many pixels. */

/** Longest side of a reduced photograph; more than any model's input. */
const MAX_SIDE = 4096;
const QUALITY = 0.92;
/** Status codes of files that are too large or of an unsupported format. */
const REFUSED = [413, 415, 422];

/** Decode an image and encode it as JPEG with at most MAX_SIDE pixels a side; null if the browser cannot decode it. */
async function reduce(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return null;
  }
  const { width, height } = bitmap;
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
  if (!blob) return null;
  const size = scale < 1 ? `reduced from ${width} × ${height} to ${canvas.width} × ${canvas.height} pixels` : "converted to JPEG";
  return { file: new File([blob], file.name, { type: "image/jpeg" }), note: `${size} in this browser` };
}

/**
 * Upload a file; if the server refuses it and this browser can decode it, upload a reduced copy.
 *
 * @param send uploads a file and returns what the server has stored
 * @returns what the server has stored, with a note on the reduction, and the file that was sent
 */
export async function uploadReduced(file, send) {
  try {
    return { stored: await send(file), sent: file };
  } catch (error) {
    if (!REFUSED.includes(error.status)) throw error;
    const reduced = await reduce(file);
    if (!reduced) throw error;
    const stored = await send(reduced.file).catch(() => {
      throw error;
    });
    return { stored: { ...stored, notes: [reduced.note, ...(stored.notes ?? [])] }, sent: reduced.file };
  }
}
