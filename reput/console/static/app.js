// On every page: local times, the "/" key, copy buttons, short URLs from forms.

import { localize } from "./rows.js";

localize(document);
document.querySelector(".bar nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
document.getElementById("zone").textContent =
  `${Intl.DateTimeFormat().resolvedOptions().timeZone} (point at a time for UTC)`;

addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) return;
  const input = document.querySelector("[data-focus-key], form input:not([type=hidden])");
  if (!input) return;
  event.preventDefault();
  input.focus();
  input.select();
});

for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) break; // only on https and on this machine
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}

// Conditions that are not set stay out of the URL.
addEventListener("submit", ({ target, defaultPrevented }) => {
  if (defaultPrevented) return;
  const empty = [...target.elements].filter((e) => e.name && e.value.trim() === "");
  for (const input of empty) input.disabled = true;
  setTimeout(() => empty.forEach((input) => (input.disabled = false)));
});
