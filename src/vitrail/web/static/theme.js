/* Applies the stored theme before the page is drawn. A classic script in the head, so that it runs first. */
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("vitrail-theme");
  } catch {
    return; // storage is disabled: the theme of the system is used
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
