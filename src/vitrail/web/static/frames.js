/** The frames of a video: a slider, a button that plays them, and the relevance of each. */

import { setText } from "./dom.js";

const find = (id) => document.getElementById(id);
/** Milliseconds of a frame while the video plays. */
const STEP = 250;

export class FrameSlider {
  /** @param onChange called with the number of the frame, and whether the user has settled on it */
  constructor(onChange) {
    this.root = find("frames");
    this.slider = find("frame-slider");
    this.output = find("frame-text");
    this.play = find("frame-play");
    this.bars = find("frame-bars");
    this.onChange = onChange;
    this.slider.addEventListener("input", () => this.#set(Number(this.slider.value), false));
    this.slider.addEventListener("change", () => this.#set(Number(this.slider.value), true));
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.#start()));
  }

  /** Offer the frames of a video; hidden for a single image. */
  setCount(count, frame) {
    this.stop();
    this.count = count;
    this.root.hidden = count < 2;
    this.slider.max = String(Math.max(0, count - 1));
    this.frame = Math.min(frame, count - 1);
    this.#draw();
  }

  /** Draw the relevance of each frame: the positive part of a map over time, or nothing while it is unknown. */
  showRelevance(map) {
    if (this.root.hidden || this.bars.shownMap === map) return;
    this.bars.shownMap = map;
    const context = this.bars.getContext("2d");
    const { width, height } = this.bars;
    context.clearRect(0, 0, width, height);
    if (!map) return;
    const sums = map.sums.map((sum) => Math.max(0, sum));
    const most = Math.max(...sums, 1e-12);
    const step = width / sums.length;
    context.fillStyle = getComputedStyle(this.bars).color;
    sums.forEach((sum, i) => {
      const tall = Math.max(1, (height * sum) / most);
      context.fillRect(i * step + 1, height - tall, step - 2, tall);
    });
  }

  #start() {
    this.timer = setInterval(() => this.#set((this.frame + 1) % this.count, false), STEP);
    this.#draw();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.#draw();
  }

  #set(frame, settled) {
    this.frame = frame;
    this.#draw();
    this.onChange(frame, settled);
  }

  #draw() {
    if (this.root.hidden) return;
    this.slider.value = String(this.frame);
    const text = `frame ${this.frame + 1} of ${this.count}`;
    setText(this.output, text);
    this.slider.setAttribute("aria-valuetext", text);
    setText(this.play, this.timer ? "Pause" : "Play");
  }
}
