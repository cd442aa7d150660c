/** Beside the large map: the verdict of its check, what the method computes, and how to read the map. */

import { methodTitle } from "./captions.js";
import { el, minus, sentence, setText } from "./dom.js";
import { formatSeconds } from "./maps.js";

const find = (id) => document.getElementById(id);

/** The verdict of a check as a badge, or "" while there is none. */
export function verdictBadge(item) {
  if (!item?.check) return "";
  const { verdict, meaning, passed } = item.check;
  return el(
    "span",
    { class: passed ? "verdict passed" : "verdict failed", title: sentence(meaning), data: { verdict } },
    verdict,
  );
}

/** The worst of the checks of a method's maps: one that failed, or the first once all have passed. */
export function worstCheck(items) {
  const failed = items.find((item) => item?.check && !item.check.passed);
  return failed ?? (items.every((item) => item?.check) ? items[0] : undefined);
}

export class AboutMap {
  /** @param on {focus(spec), enableChecks(boolean)} */
  constructor(on) {
    this.on = on;
    this.check = find("check");
    this.method = find("about-method");
    this.reading = find("reading-list");
    this.toggle = find("check-toggle");
    this.toggle.addEventListener("click", () => on.enableChecks(this.toggle.dataset.action === "start"));
  }

  /**
   * @param view {method, targets, className(target), contrast, check(target), progress, enabled, better, geometry}:
   *   better is a method whose maps pass the check while this one's do not, or null
   */
  show(view) {
    this.#drawCheck(view);
    this.#drawMethod(view.method);
    this.#drawReading(view);
  }

  #drawCheck({ method, targets, className, check, progress, enabled, better }) {
    const items = targets.map((target) => ({ target, item: check(target) }));
    const parts = [];
    for (const { target, item } of items) {
      const about = targets.length > 1 ? `${className(target)}: ` : "";
      if (item?.check)
        parts.push(
          el("p", { class: "check-verdict" }, about, verdictBadge(item), " ", sentence(item.check.meaning)),
          el("p", { class: "check-detail" }, minus(item.check.sentences.slice(0, 2).join(" "))),
          correlationList(item.check.correlations),
        );
      else if (item?.error) parts.push(el("p", {}, `${about}Not checked: ${sentence(item.error.what)}`));
      else if (!enabled) parts.push(el("p", {}, `${about}Not checked.`));
      else parts.push(el("p", { class: "pending" }, `${about}${pendingText(item)}`));
    }
    if (better) {
      const show = el("button", { type: "button", class: "secondary" }, `Show ${methodTitle(better)}`);
      show.addEventListener("click", () => this.on.focus(better.spec));
      parts.push(el("p", { class: "row" }, `The map of ${methodTitle(better)} is faithful on this image.`, show));
    }
    const drawnKey = JSON.stringify([method.spec, parts.map((part) => part.textContent)]);
    if (this.check.drawnKey !== drawnKey) {
      this.check.drawnKey = drawnKey;
      this.check.replaceChildren(...parts);
    }
    const busy = enabled && (progress.running || progress.done < progress.total);
    setText(find("check-status"), busy && progress.done ? `${progress.done} of ${progress.total} maps checked` : "");
    this.toggle.hidden = enabled && !progress.running;
    this.toggle.dataset.action = enabled ? "stop" : "start";
    setText(this.toggle, enabled ? "Stop checking" : "Check the maps");
  }

  #drawMethod(method) {
    if (this.method.drawnKey === method.spec) return;
    this.method.drawnKey = method.spec;
    const { paper } = method;
    const source = paper
      ? el(
          "p",
          { class: "paper" },
          paper.url
            ? el("a", { href: paper.url, target: "_blank", rel: "noopener noreferrer" }, paper.title)
            : paper.title,
          ` (${paper.authors}, ${paper.year})`,
        )
      : el("p", { class: "paper" }, method.family === "control" ? "A control, not a method." : "A method of Vitrail.");
    const page = method.name ? `/help/methods/${encodeURIComponent(method.name)}` : "/help#methods";
    this.method.replaceChildren(
      el("p", { class: "summary" }, el("strong", {}, methodTitle(method)), ": ", method.summary ?? ""),
      el("p", { class: "paper" }, el("a", { href: page, target: "_blank" }, `More about ${method.title}`)),
      source,
      el("p", { class: "cost" }, costText(method)),
    );
  }

  #drawReading({ method, targets, className, contrast, geometry }) {
    const lines = [];
    const name = className(targets[0]);
    if (targets.length > 1)
      lines.push(`Orange patches count for ${name}, blue ones for ${className(targets[1])}, white ones for both.`);
    else if (method.signed)
      lines.push(
        contrast
          ? `Warm patches speak for ${name}, cold ones for the opposite. White ones count little.`
          : `Warm patches speak for ${name}, cold ones against it. White ones count little.`,
      );
    else lines.push(`Bright patches count most for ${name}, dark ones least.`);
    if (contrast)
      lines.push("The map explains the logit of the first class minus the logit of the second, not one class alone.");
    lines.push("Colours are scaled for each map: compare patches of one map, not brightness between methods.");
    if (!method.class_specific)
      lines.push("Class-agnostic: the method gives the same map for every class, so it cannot say why this class.");
    lines.push("A map is what a method computes. The check tests it: it removes the patches that the map marks.");
    if (geometry?.cropped) lines.push(sentence(geometry.text));
    const drawnKey = lines.join("\n");
    if (this.reading.drawnKey === drawnKey) return;
    this.reading.drawnKey = drawnKey;
    this.reading.replaceChildren(...lines.map((line) => el("li", {}, line)));
  }
}

/** The rank correlations of a check, each with its good range. */
function correlationList(correlations) {
  if (!correlations?.length) return "";
  const rows = correlations.map((one) =>
    el(
      "li",
      { class: one.good ? "good" : "doubtful" },
      el("span", { class: "value" }, minus(one.value.toFixed(2))),
      el("span", {}, one.with),
      el("small", {}, one.good ? `good: ${one.range}` : `doubtful; good: ${one.range}`),
    ),
  );
  return el("ul", { class: "correlations", "aria-label": "Rank correlation of this map with" }, ...rows);
}

function pendingText(item) {
  if (item?.state !== "running") return "The check starts when the maps are ready.";
  const left = item.seconds_left ? `, about ${formatSeconds(Math.max(1, item.seconds_left))} left` : "";
  return `Checking … ${Math.round(100 * (item.progress ?? 0))} %${left}`;
}

/** What a method costs, in words. */
export function costText(method) {
  if (method.shared_pass && !method.options) return "Cost: computed from one pass that all fast methods share.";
  const count = method.forwards - 1;
  if (method.options || !(count > 0)) return "Cost: depends on the options.";
  return `Cost: evaluates ${count.toLocaleString("en")} perturbed images.`;
}
