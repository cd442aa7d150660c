"""Helpers for tests of the page: canvas checksums, states to wait for, accessible names and contrast."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

#: Roles that need an accessible name.
NAMED_ROLES = {
    "button", "checkbox", "radio", "combobox", "textbox", "searchbox", "slider", "tab", "link", "image", "dialog",
    "application", "progressbar",
}  # fmt: skip
#: JavaScript that returns the texts whose contrast to their background is below 4.5.
LOW_CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const over = (top, under) => {
    const alpha = top[3] ?? 1;
    return under.map((c, k) => alpha * top[k] + (1 - alpha) * c);
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const excluded = element.closest(".visually-hidden, .skip-link, :disabled, svg, .unavailable, noscript");
    if (!own || excluded || !element.checkVisibility()) continue;
    if (document.querySelector("dialog[open]") && !element.closest("dialog")) continue;
    const chain = [];
    for (let at = element; at; at = at.parentElement) chain.unshift(parse(getComputedStyle(at).backgroundColor));
    const background = chain.reduce((under, top) => (top.length ? over(top, under) : under), [255, 255, 255]);
    const style = getComputedStyle(element);
    const [a, b] = [luminance(over(parse(style.color), background)), luminance(background)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const what = `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 40)}`;
    if (ratio < 4.5) low.push(`${what}: ${ratio.toFixed(2)}`);
  }
  return low;
}"""


def unnamed_controls(page):
    """Roles of controls without an accessible name."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") in NAMED_ROLES]
    assert len(shown) > 3
    return [node["role"]["value"] for node in shown if not node.get("name", {}).get("value", "").strip()]


def wait_idle(page, root="#image-panel"):
    """Wait until all maps are ready."""
    page.wait_for_selector(f"{root}[aria-busy=false]")


def default_only(page):
    """Show only the default method."""
    page.click("#image-panel button:has-text('Default only')")
    wait_idle(page)


def delay_responses(page, path, milliseconds=250):
    """Delay the responses to a path, as on a busy machine."""
    script = """([path, milliseconds]) => {
      const { fetch } = window;
      window.fetch = async (url, ...rest) => {
        if (String(url).includes(path)) await new Promise((done) => setTimeout(done, milliseconds));
        return fetch(url, ...rest);
      };
    }"""
    page.evaluate(script, [path, milliseconds])


def show_all_methods(page, root="#image-panel"):
    """Show the whole list of methods."""
    toggle = page.locator(f"{root} .all-methods[aria-expanded=false]")
    if toggle.count() and toggle.is_visible():
        toggle.click()


def select_methods(page, *methods, root="#image-panel"):
    """Check methods and wait for their results."""
    show_all_methods(page, root)
    for name in methods:
        page.check(f"{root} .methods input[value={name}]")
    for name in methods:
        page.wait_for_selector(f"{root} [data-method={name}][data-state=done]")


#: JavaScript that returns a checksum of a canvas.
CHECKSUM = """selector => {
  const canvas = document.querySelector(selector);
  if (!canvas) return 0;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let sum = 7;
  for (let i = 0; i < data.length; i += 53) sum = (31 * sum + data[i]) % 1000000007;
  return sum;
}"""


def canvas_checksum(page, selector="#main-map canvas"):
    return page.evaluate(CHECKSUM, selector)


def wait_for(page, test, given=None):
    """Wait until an expression of `given` is true; the content security policy allows functions only."""
    page.wait_for_function(f"given => {test}", arg=given)


def wait_redrawn(page, known, selector="#main-map canvas"):
    """Wait for a checksum that is none of the known ones, and return it."""
    test = f"([known, selector]) => !known.includes(({CHECKSUM})(selector))"
    page.wait_for_function(test, arg=[list(known), selector], polling=100)
    return canvas_checksum(page, selector)


def random_image(seed=0):
    """A file to upload."""
    buffer = BytesIO()
    values = np.random.default_rng(seed).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(values).save(buffer, format="PNG")
    return {"name": f"image-{seed}.png", "mimeType": "image/png", "buffer": buffer.getvalue()}
