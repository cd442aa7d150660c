/** Loading of images. */

import { ApiError } from "./api.js";

/** Load and decode an image. */
export function loadImage(url) {
  const image = new Image();
  image.src = url;
  return image.decode().then(
    () => image,
    () => {
      throw new ApiError("The image cannot be displayed.", "Open it again.");
    },
  );
}
