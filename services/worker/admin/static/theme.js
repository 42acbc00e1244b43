// Before anything is drawn: the look chosen last, or what the system prefers.
(() => {
  const chosen = localStorage.getItem("glossa-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
