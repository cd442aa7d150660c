"""What is looked at on the page: drawings as numbers, states to wait for, names and contrast."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

NAMED = {
    "button", "checkbox", "radio", "combobox", "textbox", "searchbox", "slider", "tab", "link", "image", "dialog",
    "application", "progressbar",
}  # fmt: skip
#: Texts whose colour is too near to what is behind them.
CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const over = (top, under) => {
    const alpha = top[3] ?? 1;
    return under.map((c, k) => alpha * top[k] + (1 - alpha) * c);
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const left = element.closest(".unseen, .skip, :disabled, svg, .off, noscript");
    if (!own || left || !element.checkVisibility()) continue;
    if (document.querySelector("dialog[open]") && !element.closest("dialog")) continue;
    const chain = [];
    for (let at = element; at; at = at.parentElement) chain.unshift(parse(getComputedStyle(at).backgroundColor));
    const ground = chain.reduce((under, top) => (top.length ? over(top, under) : under), [255, 255, 255]);
    const style = getComputedStyle(element);
    const [a, b] = [luminance(over(parse(style.color), ground)), luminance(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const what = `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 40)}`;
    if (ratio < 4.5) poor.push(`${what}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


def nameless(page):
    """Controls a screen reader could not announce."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") in NAMED]
    assert len(shown) > 3
    return [node["role"]["value"] for node in shown if not node.get("name", {}).get("value", "").strip()]


def settled(page, root="#picture"):
    page.wait_for_selector(f"{root}[aria-busy=false]")


def alone(page):
    """Show the default method only."""
    page.click("#picture button:has-text('Only the default')")
    settled(page)


def slow(page, path, milliseconds=250):
    """Let answers to a path come late, as from a busy machine."""
    late = """([path, milliseconds]) => {
      const { fetch } = window;
      window.fetch = async (url, ...rest) => {
        if (String(url).includes(path)) await new Promise((done) => setTimeout(done, milliseconds));
        return fetch(url, ...rest);
      };
    }"""
    page.evaluate(late, [path, milliseconds])


def choose(page, *methods, root="#picture"):
    for name in methods:
        page.check(f"{root} .methods input[value={name}]")
    for name in methods:
        page.wait_for_selector(f"{root} [data-method={name}][data-state=done]")


#: What is drawn on a canvas, as a number.
DRAWN = """selector => {
  const canvas = document.querySelector(selector);
  if (!canvas) return 0;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let sum = 7;
  for (let i = 0; i < data.length; i += 53) sum = (31 * sum + data[i]) % 1000000007;
  return sum;
}"""


def drawn(page, selector="#glass canvas"):
    return page.evaluate(DRAWN, selector)


def until(page, test, given=None):
    """Wait until an expression of `given` is true; the page's policy allows functions only."""
    page.wait_for_function(f"given => {test}", arg=given)


def redrawn(page, known, selector="#glass canvas"):
    """Wait for a drawing that is none of the known ones, and give it."""
    test = f"([known, selector]) => !known.includes(({DRAWN})(selector))"
    page.wait_for_function(test, arg=[list(known), selector], polling=100)
    return drawn(page, selector)


def photo(seed=0):
    held = BytesIO()
    values = np.random.default_rng(seed).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(values).save(held, format="PNG")
    return {"name": f"photo-{seed}.png", "mimeType": "image/png", "buffer": held.getvalue()}
