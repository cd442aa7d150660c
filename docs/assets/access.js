/* Names and focus that the theme leaves out: the search dialog, the buttons of code blocks, and tables that scroll. */
const nameParts = () => {
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  document.querySelectorAll("nav.md-code__nav").forEach((nav) => nav.setAttribute("role", "presentation"));
  document.querySelectorAll("nav.md-nav[aria-labelledby]").forEach((nav, i) => {
    const label = document.getElementById(nav.getAttribute("aria-labelledby"))?.textContent?.trim();
    nav.removeAttribute("aria-labelledby");
    nav.setAttribute("aria-label", `${label || "Pages"} (${i + 1})`);
  });
  for (const th of document.querySelectorAll(".md-typeset th"))
    if (!th.textContent.trim()) th.replaceWith(document.createElement("td"));
  for (const formula of document.querySelectorAll(".md-typeset th annotation")) // a heading that is a formula
    if (!formula.closest("th").querySelector(".formula-name")) {
      const name = Object.assign(document.createElement("span"), { className: "formula-name" });
      name.textContent = formula.textContent;
      formula.closest("th").append(name);
    }
  for (const code of document.querySelectorAll(".md-typeset pre > code"))
    if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset .output, .md-typeset .diagram").forEach((wrap, i) => {
    if (wrap.hasAttribute("tabindex")) return;
    wrap.tabIndex = 0;
    wrap.setAttribute("role", "group");
    wrap.setAttribute("aria-label", `Scrolling content ${i + 1}`);
  });
};
document.addEventListener("DOMContentLoaded", nameParts);
addEventListener("load", () => setTimeout(nameParts, 300)); // the theme adds its parts later
