/* Typeset the formulas of a page with the KaTeX of this folder. It is loaded only where there is a formula. */
(() => {
  const folder = new URL("katex/", document.currentScript.src);

  function typeset() {
    const formulas = document.querySelectorAll(".arithmatex");
    if (!formulas.length) return;
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("katex.min.css", folder);
    document.head.append(style);
    const script = document.createElement("script");
    script.src = new URL("katex.min.js", folder);
    script.onload = () => formulas.forEach(render);
    document.head.append(script);
  }

  function render(formula) {
    const source = formula.textContent.trim();
    const displayMode = source.startsWith("\\[");
    window.katex.render(source.slice(2, -2), formula, { displayMode, throwOnError: false });
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", typeset);
  else typeset();
})();
